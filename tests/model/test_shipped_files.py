"""What transformers asks of the files that travel with a checkpoint: it copies those that they import, and no others."""

import ast
import re
import sys

import pytest

from helpers import CODE_FILES, ROOT


LIBRARIES = {"torch", "transformers", "huggingface_hub"}


@pytest.fixture(params=sorted(CODE_FILES))
def source(request):
    return (ROOT / "scratch_bert/model" / request.param).read_text()


def test_shipped_files_import_each_other_by_name_and_otherwise_few_libraries(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            assert node.level == 1 and f"{node.module}.py" in CODE_FILES, ast.unparse(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
            for name in names:
                assert name.split(".")[0] in LIBRARIES | sys.stdlib_module_names, ast.unparse(node)


def test_shipped_files_have_no_text_that_looks_like_an_import(source):
    """transformers finds relative imports by a regular expression, in docstrings, too."""
    imports = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom) and node.level > 0]
    assert len(re.findall(r"^\s*(?:import\s+\.|from\s+\.)", source, re.MULTILINE)) == len(imports)
