"""What fails between here and the Hub: one line that says what to do, in a limited time."""

import time
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi, close_session, constants, set_client_factory
from huggingface_hub.utils import _http

from hub_server import DROPPED, PORTAL, Fault, LocalHub
from scratch_bert.repository import find_file
from scratch_bert_cli.process import script
from scratch_bert_options import network


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A Hub with a file, reached by the limited client, without the pauses between two tries."""
    with LocalHub() as hub:
        hub.connect(monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        api = HfApi()
        api.create_repo("tester/model")
        api.upload_file(path_or_fileobj=b"{}", path_in_repo="config.json", repo_id="tester/model")
        monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: None))
        network.limit_waiting()
        yield hub
        set_client_factory(_http.default_client_factory)


@script
def download():
    find_file("tester/model", "config.json", required=True)


@pytest.mark.parametrize(
    ("method", "fault", "message"),
    [
        ("HEAD", 401, r"tester/model is not a directory, .*config.json answers 401 \(.*\): .*hf auth login"),
        ("HEAD", 403, r".*answers 403 \(.*\): check the token's permissions"),
        ("HEAD", 404, r".*answers 404 \(.*\): check the name"),
        ("HEAD", 407, r".*answers 407 \(.*\): put the proxy's user name"),
        ("HEAD", 418, r".*answers 418 \(.*\): check the name"),
        ("HEAD", 429, r".*answers 429 \(.*\): wait"),
        ("HEAD", 503, r".*answers 503 \(.*\): try again later"),
        ("GET", 500, r".*answers 500 \(.*\): try again later"),
        ("HEAD", DROPPED, r".*The network failed at 127.0.0.1 \(.*\): check the connection and the proxy"),
        ("HEAD", PORTAL, ".*check your firewall and proxy"),
    ],
)
def test_failed_download_is_one_line(method, fault, message, hub):
    hub.faults = [Fault(method, "config.json", fault, times=99)]
    with pytest.raises(SystemExit, match=f"^error: {message}") as stopped:
        download()
    assert "\n" not in stopped.value.code


def test_page_instead_of_an_answer_is_named(hub):
    hub.faults = [Fault("GET", "whoami", PORTAL)]
    with pytest.raises(SystemExit, match="error: 127.0.0.1 answers with a web page: log in"):
        script(HfApi().whoami)()


@pytest.mark.parametrize("status", [DROPPED, 503])
def test_download_is_tried_again(status, hub):
    hub.faults = [Fault("HEAD", "config.json", status, times=3)]
    download()
    hub.faults = [Fault("HEAD", "config.json", status, times=99)]
    download()  # of what it has


def test_silent_server_is_left_in_time(hub, monkeypatch):
    hub.faults = [Fault("HEAD", "config.json", times=99, seconds=1)]
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.1)
    monkeypatch.setattr(network, "PATIENCE", 0.15)
    started = time.monotonic()
    with pytest.raises(SystemExit, match="127.0.0.1 has failed for 0.15 s: check the connection"):
        download()
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HTTPS_PROXY", ":::", "as one of .*HTTPS_PROXY.* is wrong: "),
        ("ALL_PROXY", "gopher://127.0.0.1:9", "as one of .*ALL_PROXY.* is wrong: "),
        ("SSL_CERT_FILE", "/nowhere", "as one of .*SSL_CERT_FILE.* is wrong: "),
        ("HF_TOKEN", "hf_é", "The token, from HF_TOKEN "),
        ("HF_ENDPOINT", "huggingface.co", "HF_ENDPOINT=huggingface.co must begin with https://"),
    ],
)
def test_setting_of_the_network_is_named(variable, value, message, hub, monkeypatch):
    monkeypatch.setenv(variable, value)
    if variable == "HF_ENDPOINT":  # which is read when huggingface_hub is imported
        monkeypatch.setattr(constants, "ENDPOINT", value)
    close_session()
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        download()
