"""The Hub of the tests answers as the client expects."""

import pytest
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError


@pytest.fixture
def api(hub):
    api = HfApi()
    api.create_repo("model", private=True)
    api.upload_file(path_or_fileobj=b"text", path_in_repo="a/b.txt", repo_id="tester/model")
    api.upload_file(path_or_fileobj=b"weights", path_in_repo="c.bin", repo_id="tester/model")
    return api


def test_hub_server_stores_files_and_revisions(api, hub, tmp_path):
    assert api.file_exists("tester/model", "c.bin") and not api.file_exists("tester/model", "d.bin")
    assert {item.path for item in api.list_repo_tree("tester/model")} == {".gitattributes", "a", "c.bin"}
    assert {item.path for item in api.list_repo_tree("tester/model", "a")} == {"a/b.txt"}
    for file, content in (("a/b.txt", b"text"), ("c.bin", b"weights")):
        with open(hf_hub_download("tester/model", file, cache_dir=tmp_path), "rb") as stream:
            assert stream.read() == content
    assert [request for request in hub.requests if request.startswith("GET /lfs/")]  # large files are redirected
    api.create_tag("tester/model", tag="v1")
    api.delete_file("c.bin", "tester/model")
    assert not api.file_exists("tester/model", "c.bin") and api.file_exists("tester/model", "c.bin", revision="v1")
    assert [tag.name for tag in api.list_repo_refs("tester/model").tags] == ["v1"]


@pytest.mark.parametrize(
    ("error", "repo_id", "file", "revision"),
    [
        pytest.param(EntryNotFoundError, "tester/model", "d.bin", "main", id="file"),
        pytest.param(RevisionNotFoundError, "tester/model", "a/b.txt", "v2", id="revision"),
        pytest.param(RepositoryNotFoundError, "tester/none", "a/b.txt", "main", id="repository"),
    ],
)
def test_hub_server_says_what_is_not_found(error, repo_id, file, revision, api, tmp_path):
    with pytest.raises(error):
        hf_hub_download(repo_id, file, revision=revision, cache_dir=tmp_path)


def test_hub_server_hides_private_repositories(api):
    with pytest.raises(RepositoryNotFoundError):
        api.model_info("tester/model", token=False)
