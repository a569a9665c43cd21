"""A small Hugging Face Hub on loopback, for tests: a real HTTP server that the real client talks to.

Repositories of models and Spaces are kept in memory, those of Spaces under names such as spaces/me/demo. A commit maps
paths to objects: small files under their git hash, large files (LFS) under their SHA-256. Large files are uploaded to
and downloaded from another host name, as on the Hub. It has the routes that the client needs to publish and to open
models.

    with LocalHub() as hub:
        subprocess.run(command, env={**os.environ, **hub.environment})
"""

import base64
import hashlib
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import pytest
import transformers
import yaml
from flask import Flask, Response, abort, jsonify, request
from huggingface_hub import ModelCard, constants
from pydantic import BaseModel, Field
from werkzeug.serving import make_server


TOKEN = "hf_" + "localhubtoken".ljust(34, "0")
USER = "tester"
DROPPED, PORTAL = 0, 200  # instead of a status
LFS_SUFFIXES = (".safetensors", ".bin", ".png")


@dataclass
class Commit:
    files: dict[str, str]  # path → name of the object
    message: str
    parent: str | None


@dataclass
class Repository:
    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)  # refs/heads/main, refs/tags/v1, refs/pr/1 → commit

    def add(self, ref: str, files: dict[str, str], message: str, parent: str | None = None) -> str:
        commit = hashlib.sha1(json.dumps([len(self.commits), files, message, parent]).encode()).hexdigest()
        self.commits[commit] = Commit(files, message, parent)
        self.refs[ref] = commit
        return commit

    def full_ref(self, revision: str) -> str | None:
        return next(
            (ref for ref in (f"refs/heads/{revision}", f"refs/tags/{revision}", revision) if ref in self.refs), None
        )

    def find(self, revision: str) -> str | None:
        """The commit of a branch, a tag, a pull request or a hash."""
        ref = self.full_ref(revision)
        return self.refs[ref] if ref else revision if revision in self.commits else None


@dataclass
class Fault:
    """A failure of the next `times` requests of this method whose path matches: an answer of this status, DROPPED
    without one, or an answer that is a PORTAL's page, after some `seconds`."""

    method: str
    path: str
    status: int = 503
    times: int = 1
    seconds: float = 0


class LocalHub:
    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.faults: list[Fault] = []
        self.requests: list[str] = []  # "PUT /lfs/…"
        self._lock = threading.Lock()
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
        self._server = make_server("127.0.0.1", 0, self._app(), threaded=True)
        self.endpoint = f"http://127.0.0.1:{self._server.port}"
        self.storage = f"http://localhost:{self._server.port}"  # another host name, as that of the Hub's large files

    def __enter__(self) -> "LocalHub":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exception) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """The variables of a process that talks to this Hub: read when huggingface_hub is imported."""
        given = {"HF_ENDPOINT": self.endpoint, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
        return given | dict.fromkeys(("HF_HUB_DISABLE_XET", "HF_HUB_DISABLE_TELEMETRY"), "1")

    def connect(self, patch: pytest.MonkeyPatch) -> None:
        """Let the client in this process, which has been imported already, talk to this Hub."""
        patch.setattr(constants, "ENDPOINT", self.endpoint)
        patch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{self.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        )
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        patch.setattr(transformers.utils.hub, "_hf_api", None)  # Trainer's client, which keeps its first endpoint
        patch.setenv("HF_TOKEN", TOKEN)

    def read(self, repo_id: str, path: str, revision: str = "main") -> bytes:
        repository = self.repositories[repo_id]
        return self.objects[repository.commits[repository.find(revision)].files[path]]

    def files(self, repo_id: str, revision: str = "main") -> set[str]:
        repository = self.repositories[repo_id]
        return set(repository.commits[repository.find(revision)].files)

    def messages(self, repo_id: str, revision: str = "main") -> list[str]:
        """The messages of the commits, oldest first."""
        repository = self.repositories[repo_id]
        commit, found = repository.find(revision), []
        while commit is not None:
            found.append(repository.commits[commit].message)
            commit = repository.commits[commit].parent
        return found[::-1]

    # ------------------------------------------------------------------------------------------------- the server

    def _app(self) -> Flask:
        app = Flask("hub")
        add = app.add_url_rule
        app.before_request(self._before)
        add("/api/whoami-v2", view_func=self.whoami)
        add("/api/validate-yaml", view_func=self.validate_yaml, methods=["POST"])
        add("/api/repos/create", view_func=self.create, methods=["POST"])
        add("/lfs/<oid>", view_func=self.lfs_upload, methods=["PUT"])
        add("/lfs/<oid>", view_func=self.lfs_download, methods=["GET"], endpoint="lfs_download")
        of_a_repository = [
            ("", self.info, "GET"),
            ("/revision/<path:revision>", self.info, "GET"),
            ("/refs", self.list_refs, "GET"),
            ("/tree/<path:revision>", self.tree, "GET"),
            ("/branch/<path:branch>", self.create_branch, "POST"),
            ("/tag/<path:revision>", self.create_tag, "POST"),
            ("/preupload/<path:revision>", self.preupload, "POST"),
            ("/commit/<path:revision>", self.commit, "POST"),
        ]
        for api, prefix in (("/api/models", ""), ("/api/spaces", "spaces/")):
            rules = [(f"{api}/<user>/<name>{rest}", view, method) for rest, view, method in of_a_repository]
            rules.append((f"/{prefix}<user>/<name>.git/info/lfs/objects/batch", self.lfs_batch, "POST"))
            rules.append((f"/{prefix}<user>/<name>/resolve/<path:rest>", self.resolve, "GET"))
            for rule, view, method in rules:
                add(rule, rule, partial(self._view, view, prefix), methods=[method])
        return app

    @staticmethod
    def _view(view: Callable, prefix: str, user: str, **arguments):
        return view(f"{prefix}{user}", **arguments)

    def _before(self) -> Response | None:
        with self._lock:
            self.requests.append(f"{request.method} {request.path}")
            for fault in self.faults:
                if fault.times and fault.method == request.method and re.search(fault.path, request.path):
                    fault.times -= 1
                    time.sleep(fault.seconds)
                    if fault.status == DROPPED:
                        request.environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                    if fault.status == PORTAL:
                        return Response("<html>Log in to the WiFi</html>")
                    return error(fault.status, "a failure set by the test")
        writes = request.method in ("POST", "PUT") and not request.path.startswith(("/lfs/", "/api/validate-yaml"))
        return error(401, "Invalid username or password.") if writes and not authorized() else None

    def repository(self, user: str, name: str) -> Repository:
        repository = self.repositories.get(f"{user}/{name}")
        if repository is None or (repository.private and not authorized()):
            abort(error(404 if authorized() else 401, "Repository not found", "RepoNotFound"))
        return repository

    def find(self, repository: Repository, revision: str) -> str:
        commit = repository.find(revision)
        if commit is None:
            abort(error(404, f"Invalid rev id: {revision}", "RevisionNotFound"))
        return commit

    # --------------------------------------------------------------------------------------- users, repositories

    def whoami(self):
        if not authorized():
            return error(401, "Invalid credentials in Authorization header")
        return jsonify(type="user", name=USER, fullname=USER, orgs=[], auth={"type": "access_token"})

    def validate_yaml(self):
        problems = metadata_errors(request.json["content"])
        body = {"errors": [{"message": problem} for problem in problems], "warnings": []}
        return jsonify(body), 400 if problems else 200

    def create(self):
        body = request.json
        prefix = "spaces/" if body.get("type") == "space" else ""
        repo_id = f"{prefix}{body.get('organization') or USER}/{body['name']}"
        url = f"{self.endpoint}/{repo_id}"
        if repo_id in self.repositories:
            return jsonify(error="You already created this model repo", url=url), 409
        private = bool(body.get("private") or body.get("visibility") == "private")
        repository = self.repositories[repo_id] = Repository(private)
        attributes = {".gitattributes": self.store(b"*.safetensors filter=lfs\n")}
        repository.add("refs/heads/main", attributes, "initial commit")
        return jsonify(url=url, name=repo_id, id=repo_id)

    def info(self, user: str, name: str, revision: str = "main"):
        repository, repo_id = self.repository(user, name), f"{user}/{name}"
        commit = self.find(repository, revision)
        siblings = [{"rfilename": path} for path in sorted(repository.commits[commit].files)]
        return jsonify(id=repo_id, sha=commit, private=repository.private, tags=[], siblings=siblings)

    def list_refs(self, user: str, name: str):
        refs = self.repository(user, name).refs.items()
        tags = [{"name": ref[10:], "ref": ref, "targetCommit": at} for ref, at in refs if ref.startswith("refs/tags/")]
        return jsonify(branches=[], converts=[], tags=tags)

    def tree(self, user: str, name: str, revision: str):
        """All files below a folder, also for a client that asks for its entries alone."""
        repository = self.repository(user, name)
        commit, folder = self.split(repository, revision)
        entries = []
        for path, oid in sorted(repository.commits[commit].files.items()):
            if not folder or path.startswith(f"{folder}/"):
                size = len(self.objects[oid])
                lfs = {"lfs": {"oid": oid, "size": size, "pointerSize": 134}} if len(oid) == 64 else {}
                entries.append({"type": "file", "path": path, "size": size, "oid": oid[:40], **lfs})
        return jsonify(entries) if entries else error(404, f"{folder} does not exist", "EntryNotFound")

    def create_branch(self, user: str, name: str, branch: str):
        repository = self.repository(user, name)
        if f"refs/heads/{branch}" in repository.refs:
            return error(409, f"Reference already exists: {branch}")
        repository.refs[f"refs/heads/{branch}"] = self.find(repository, "main")
        return jsonify({})

    def create_tag(self, user: str, name: str, revision: str):
        repository, tag = self.repository(user, name), request.json["tag"]
        if f"refs/tags/{tag}" in repository.refs:
            return error(409, f"Tag reference exists already: {tag}")
        repository.refs[f"refs/tags/{tag}"] = self.find(repository, revision)
        return jsonify({})

    # ---------------------------------------------------------------------------------------------------- uploads

    def store(self, content: bytes) -> str:
        oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        self.objects[oid] = content
        return oid

    def preupload(self, user: str, name: str, revision: str):
        repository = self.repository(user, name)
        present = repository.commits[self.find(repository, revision)].files
        files = []
        for file in request.json["files"]:
            mode, oid = "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular", present.get(file["path"])
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return jsonify(files=files)

    def lfs_batch(self, user: str, name: str):
        self.repository(user, name)
        objects = []
        for wanted in request.json["objects"]:
            oid = wanted["oid"]
            actions = {"upload": {"href": f"{self.storage}/lfs/{oid}"}}
            objects.append({**wanted, "authenticated": True} | ({} if oid in self.objects else {"actions": actions}))
        return jsonify(transfer="basic", objects=objects)

    def lfs_upload(self, oid: str):
        content = request.get_data()
        if hashlib.sha256(content).hexdigest() != oid:
            return error(400, "the content does not match its hash")
        self.objects[oid] = content
        return Response(status=200)

    def commit(self, user: str, name: str, revision: str):
        """All of it or nothing: the new commit is only made once every line has been read."""
        repository = self.repository(user, name)
        header, *operations = [json.loads(line) for line in request.get_data().splitlines()]
        with self._lock:
            parent = self.find(repository, revision)
            files = dict(repository.commits[parent].files)
            for operation in operations:
                key, value = operation["key"], operation["value"]
                path = value["path"]
                if key == "file":
                    content = base64.b64decode(value["content"])
                    if path == "README.md" and (problems := metadata_errors(content.decode())):
                        return error(400, problems[0])
                    files[path] = self.store(content)
                elif key == "lfsFile":
                    if value["oid"] not in self.objects:
                        return error(400, f"{path} points to an object that was not uploaded")
                    files[path] = value["oid"]
                elif key == "deletedFile" and files.pop(path, None) is None:
                    return error(404, "A file with this name doesn't exist", "EntryNotFound")
            pull_request = None
            ref = repository.full_ref(revision)
            if request.args.get("create_pr"):
                number = 1 + sum(ref.startswith("refs/pr/") for ref in repository.refs)
                ref, pull_request = f"refs/pr/{number}", f"{self.endpoint}/{user}/{name}/discussions/{number}"
            commit = repository.add(ref, files, header["value"]["summary"], parent)
        url = f"{self.endpoint}/{user}/{name}/commit/{commit}"
        return jsonify(success=True, commitOid=commit, commitUrl=url, pullRequestUrl=pull_request)

    # -------------------------------------------------------------------------------------------------- downloads

    def split(self, repository: Repository, rest: str) -> tuple[str, str]:
        """A revision, which may hold slashes, and the path after it."""
        parts = rest.split("/")
        for end in range(len(parts), 0, -1):
            commit = repository.find("/".join(parts[:end]))
            if commit is not None:
                return commit, "/".join(parts[end:])
        abort(error(404, f"Invalid rev id: {parts[0]}", "RevisionNotFound"))

    def resolve(self, user: str, name: str, rest: str):
        repository = self.repository(user, name)
        commit, path = self.split(repository, rest)
        oid = repository.commits[commit].files.get(path)
        if oid is None:
            response = error(404, "Entry not found", "EntryNotFound")
        elif len(oid) == 64:
            response = Response(status=302, headers={"Location": f"{self.storage}/lfs/{oid}"})
            response.headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(self.objects[oid]))}
        else:
            response = Response(self.objects[oid], headers={"ETag": f'"{oid}"'}, mimetype="text/plain")
        response.headers["X-Repo-Commit"] = commit
        return response

    def lfs_download(self, oid: str):
        return Response(self.objects[oid], mimetype="application/octet-stream")


def authorized() -> bool:
    return request.headers.get("Authorization") == f"Bearer {TOKEN}"


def error(status: int, message: str, code: str | None = None) -> Response:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    response = jsonify(error=message)
    response.status_code = status
    response.headers.extend(headers)
    return response


Names = str | list[Annotated[str, Field(min_length=1)]]
Language = Annotated[str, Field(pattern=r"^([a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code)$")]


class Metadata(BaseModel):
    """A model card's metadata, as the Hub takes them."""

    license: Annotated[str, Field(pattern=r"^[a-z0-9.-]*$")] = ""
    pipeline_tag: str = ""
    library_name: str = ""
    tags: Names = []
    datasets: Names = []
    metrics: Names = []
    base_model: Names = []
    language: Language | list[Language] = []


def metadata_errors(card: str) -> list[str]:
    """What the Hub refuses in a model card's metadata, by the rules in its documentation."""
    try:
        card_data = ModelCard(card).data
        Metadata(**card_data.to_dict())
    except (yaml.YAMLError, ValueError) as problem:
        return [str(problem)]
    return [
        f"the value of {result.metric_type} must be a number"
        for result in card_data.eval_results or []
        if not isinstance(result.metric_value, int | float)
    ]
