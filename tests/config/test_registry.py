import sys

import pytest

from verl_mas.config.registry import Registry
from verl_mas.errors import ConfigError


@pytest.fixture
def animals(tmp_path, monkeypatch):
    """A registry with a folder of its own, and the places where packages are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "zoo_of_test"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "bear.py").write_text("from zoo_registry import animals\nanimals.register('bear')('a bear')")
    (tmp_path / "zoo_registry.py").write_text(
        "from verl_mas.config.registry import Registry\n"
        "animals = Registry('animal', package='zoo_of_test', group='zoo_of_test')"
    )
    yield __import__("zoo_registry").animals
    for name in [name for name in sys.modules if name.startswith("zoo_")]:
        del sys.modules[name]


def install(folder, name, module, source):
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[zoo_of_test]\n{name} = {module}\n")


def test_names_are_listed_without_an_import_and_found_in_the_folder_and_in_installed_packages(animals, tmp_path):
    install(tmp_path, "lynx", "zoo_lynx", "from zoo_registry import animals\nanimals.register('lynx')('a lynx')")
    animals.register("crow")("a crow")
    assert animals.names() == list(animals) == ["bear", "crow", "lynx"] and "bear" in animals
    assert not {"zoo_of_test.bear", "zoo_lynx"} & sys.modules.keys()
    assert (animals["bear"], animals["lynx"]) == ("a bear", "a lynx")


def test_two_entries_of_one_name_and_an_entry_point_that_registers_nothing_are_refused(animals, tmp_path):
    install(tmp_path, "bear", "zoo_bears", "")
    install(tmp_path, "lynx", "zoo_lynx", "")
    animals.register("crow")("a crow")
    with pytest.raises(ConfigError, match="registered twice"):
        animals.register("crow")("another")
    with pytest.raises(ConfigError, match="registered twice"):
        animals.register("bear")("another, before the one of the folder is imported")
    with pytest.raises(ConfigError, match=r"is in zoo_of_test.bear and in zoo_bears"):
        animals["bear"]
    with pytest.raises(ConfigError, match="registers an animal named 'lynx'"):
        animals["lynx"]


def test_an_unknown_name_is_refused_with_the_known_ones_and_the_setting():
    fruits = Registry("fruit")
    fruits.register("apple")("an apple")
    with pytest.raises(ConfigError, match=r"bowl=appel\n.*a fruit is one(.|\n)*did you mean 'apple'"):
        fruits.find("appel", "bowl")
