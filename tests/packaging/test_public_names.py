"""One list of public names for people, one for type checkers, one for the interpreter: they must not part ways."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import inproc_jobs
from inproc_jobs import errors


def names_for_type_checkers() -> dict[str, str]:
    """Name to module, as the `TYPE_CHECKING` block says."""
    tree = ast.parse(Path(inproc_jobs.__file__).read_text(encoding="utf-8"))
    [block] = [
        node
        for node in tree.body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    found = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom), "only `from module import names` belongs there"
        for alias in statement.names:
            assert alias.asname is None, f"{alias.name} must not change its name"
            found[alias.name] = statement.module
    return found


def test_type_checkers_and_the_interpreter_find_each_name_in_the_same_module():
    """The TYPE_CHECKING block and the lazy table name the same modules for the same names."""
    assert names_for_type_checkers() == inproc_jobs._HOME_OF


def test_all_lists_what_can_be_loaded_and_nothing_else():
    """`from inproc_jobs import *` gives each public name and the version."""
    assert set(inproc_jobs.__all__) == {*inproc_jobs._HOME_OF, "__version__"}
    assert len(inproc_jobs.__all__) == len(set(inproc_jobs.__all__))


def test_no_name_is_listed_twice_in_the_lazy_table():
    """Two homes for one name would make the later one win in silence."""
    listed = [name for names in inproc_jobs._NAMES_OF.values() for name in names.split()]
    assert sorted(listed) == sorted(set(listed))


def test_every_error_and_signal_is_public():
    """Who catches an error of ours never has to know in which module it lives."""
    ours = {name for name, home in inproc_jobs._HOME_OF.items() if home == errors.__name__}
    assert ours == set(errors.__all__)


def test_every_class_of_the_errors_module_is_in_its_list():
    """An error that was added but not listed would be out of reach."""
    defined = {
        name for name, value in vars(errors).items() if inspect.isclass(value) and value.__module__ == errors.__name__
    }
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("name", sorted(inproc_jobs._HOME_OF))
def test_each_name_loads_from_its_home(name):
    """Each public name can be loaded, and is the very object that its module defines."""
    home = importlib.import_module(inproc_jobs._HOME_OF[name])
    assert getattr(inproc_jobs, name) is getattr(home, name)


def test_dir_shows_names_that_were_not_loaded_yet():
    """Completion in a shell or editor knows all public names from the start."""
    assert set(inproc_jobs.__all__) <= set(dir(inproc_jobs))


def test_a_misspelled_name_is_an_attribute_error():
    """A typo gets Python's usual answer."""
    with pytest.raises(AttributeError, match="module 'inproc_jobs' has no attribute 'Enigne'"):
        inproc_jobs.Enigne  # noqa: B018
