#!/usr/bin/env python
"""Publish a model's directory on the Hugging Face Hub: code, weights, tokenizer and card in one commit.

Nothing else of the directory is sent: no optimizer state, no training arguments, no logs. Log in first, with
`hf auth login` or the variable HF_TOKEN."""

import argparse
import sys
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.errors import LocalTokenNotFoundError
from huggingface_hub.utils import validate_repo_id

from scratch_bert.hub.publishing import make_branch, public_files, publish


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="What save_pretrained, Trainer or convert_checkpoint.py wrote.")
    parser.add_argument("repository", help="user/name, or a name of your own; created if there is none.")
    parser.add_argument("--private", action="store_true", help="For a new repository: make it private.")
    parser.add_argument("--revision", help="Branch to push to, created if there is none; main if not given.")
    parser.add_argument("--tag", help="Name the new commit, as in v1, so that others can pin it.")
    parser.add_argument("--pull_request", action="store_true", help="Open a pull request instead of a push.")
    parser.add_argument("--commit_message", default="Upload model")
    parser.add_argument("--dry_run", action="store_true", help="List what would be sent, and send nothing.")
    args = parser.parse_args()
    if args.pull_request and (args.revision or args.tag):
        parser.error("A pull request goes to the main branch, and has no tag: leave out --revision and --tag.")
    try:
        validate_repo_id(args.repository)
        files = public_files(args.directory)
        print(f"{'To be sent' if args.dry_run else 'Sending'} to {args.repository}:")
        for file in files:
            print(f"  {file.stat().st_size:>13,} bytes  {file.name}")
        left_out = sorted({path.name for path in args.directory.iterdir()} - {file.name for file in files})
        if left_out:
            print(f"Not sent: {', '.join(left_out)}")
    except (OSError, ValueError) as error:
        sys.exit(f"error: {error}")
    if not args.dry_run:
        try:
            push(args)
        except LocalTokenNotFoundError:
            sys.exit("error: You are not logged in. Run `hf auth login`, or set HF_TOKEN.")
        except Exception as error:  # whatever a network does
            sys.exit(f"error: {error}")


def push(args: argparse.Namespace) -> None:
    api, repository = HfApi(), args.repository
    user = api.whoami()["name"]  # without a token, say so before anything else
    if "/" not in repository:
        repository = f"{user}/{repository}"
    if not args.pull_request:
        api.create_repo(repository, private=args.private or None, exist_ok=True)
    if args.private and not api.repo_info(repository).private:
        raise ValueError(f"{repository} is public already: make it private in its settings, or choose another name.")
    if args.tag and args.tag in {tag.name for tag in api.list_repo_refs(repository).tags}:
        raise ValueError(f"{repository} has a tag {args.tag} already: choose another.")
    make_branch(api, repository, args.revision)
    options = {"revision": args.revision, "commit_message": args.commit_message, "create_pr": args.pull_request}
    commit = publish(args.directory, repository, api, **options)
    if args.tag:
        api.create_tag(repository, tag=args.tag, revision=commit.oid)
    if args.pull_request:
        print(f"Pull request: {commit.pr_url}" if commit.pr_url else "The repository holds all of this already.")
        return
    revision = args.tag or args.revision
    pinned = f', revision="{revision}"' if revision else ""
    print(f"Done: {commit.commit_url}")
    print(f'To open it: AutoModel.from_pretrained("{repository}"{pinned}, trust_remote_code=True)')


if __name__ == "__main__":
    main()
