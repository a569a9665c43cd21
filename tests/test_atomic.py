import pytest

from scratch_bert.atomic import locked, move_into_place


def test_directory_is_replaced(tmp_path):
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    move_into_place(tmp_path / "new", tmp_path / "old")
    assert [path.name for path in tmp_path.iterdir() if path.name != ".saving"] == ["old"]
    assert [path.name for path in (tmp_path / "old").iterdir()] == ["new"]


def test_directory_of_a_run_rejects_a_second_one(tmp_path):
    with (
        locked(tmp_path / "run"),
        pytest.raises(BlockingIOError, match="Another run is writing to .*run: wait until it ends"),
        locked(tmp_path / "run"),
    ):
        pass
    with locked(tmp_path / "run"):
        pass
