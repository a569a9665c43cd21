"""Publish a model's directory on the Hugging Face Hub: code, weights, tokenizer and model card in one commit.

Nothing else is sent: no optimizer state, no training arguments, no logs. With --space, it also creates a Gradio Space
with the page of scripts/demo.py, where everyone can try the model at this commit. Log in first, with `hf auth
login` or the variable HF_TOKEN."""

import argparse
from pathlib import Path

from ..command_line import announce_imports
from ..process import script


@script
def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="A directory written by save_pretrained, training or conversion.")
    parser.add_argument("repository", help="user/name, or a name in your account; created if it does not exist.")
    parser.add_argument(
        "--update_code",
        action="store_true",
        help="First replace the code in the directory with this version's. Weights and tokenizer stay as they are.",
    )
    parser.add_argument("--private", action="store_true", help="Make a new repository private.")
    parser.add_argument("--revision", help="The branch to push to, created if it does not exist (main).")
    parser.add_argument("--tag", help="Tag for the new commit, such as v1, so that others can pin it.")
    parser.add_argument("--pull_request", action="store_true", help="Open a pull request instead of pushing.")
    parser.add_argument("--commit_message", default="Upload model", help="Message of the commit (%(default)s).")
    parser.add_argument("--space", help="user/name of a Gradio Space to create or update for this commit.")
    parser.add_argument("--dry_run", action="store_true", help="Check and list the files, but send nothing.")
    args = parser.parse_args(argv)
    if args.pull_request and args.space:
        parser.error("a pull request cannot have a Space: leave --space out.")
    if not args.directory.strip():  # a variable that is not set: the current directory is .
        parser.error("the name of the directory is empty.")
    directory = Path(args.directory)
    announce_imports()

    from huggingface_hub import HfApi

    from scratch_bert import __version__
    from scratch_bert.hub.code import update_code
    from scratch_bert.hub.publishing import check_names, full_name, public_files, push_to_hub
    from scratch_bert_demo.space import check_space, push_space, space_files

    check_names(args.repository, args.revision, args.tag, args.pull_request, args.space, args.commit_message)
    files = public_files(directory)  # complete, before anything is replaced
    if args.update_code:
        print(f"{'To be replaced' if args.dry_run else 'Replacing'}: the code, with scratch_bert {__version__}'s")
        if not args.dry_run:
            update_code(directory)
            files = public_files(directory)
    print(f"{'To be sent' if args.dry_run else 'Sending'} to {args.repository}:")
    for file in files:
        print(f"  {file.stat().st_size:>13,} bytes  {file.relative_to(directory)}")
    if args.space:
        print(f"And to the Space {args.space}:")
        for path, content in space_files(args.repository, "the commit").items():
            print(f"  {len(content):>13,} bytes  {path}")
    sent = {file.relative_to(directory).parts[0] for file in files}
    if left_out := sorted({path.name for path in directory.iterdir()} - sent):
        print(f"Not sent: {', '.join(left_out)}")
    if args.dry_run:
        print("Nothing was sent; without --dry_run, it will be. First read README.md, which may quote your text.")
        return
    api = HfApi()
    if args.space:
        repository = full_name(args.repository, api)
        private = args.private or (api.repo_exists(repository) and api.repo_info(repository).private)
        check_space(args.space, api, private)
    commit = push_to_hub(
        directory,
        args.repository,
        private=args.private,
        revision=args.revision,
        tag=args.tag,
        create_pr=args.pull_request,
        commit_message=args.commit_message,
        space=args.space,
        files=files,
    )
    if args.space:
        push_space(args.space, commit.repo_url.repo_id, commit.oid, api)
    if args.pull_request:
        print(f"Pull request: {commit.pr_url}" if commit.pr_url else "The repository already has these files.")
        return
    revision = args.tag or args.revision
    pinned = f', revision="{revision}"' if revision else ""
    print(f"Done: {commit.commit_url}")
    if args.space:
        print(f"The Space shows it: {args.space}")
    print(f'To load it: AutoModel.from_pretrained("{commit.repo_url.repo_id}"{pinned}, trust_remote_code=True)')
