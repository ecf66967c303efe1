import pytest

from verl_mas.config.schema import MasConfig
from verl_mas.config.user_code import load_module, load_user_code
from verl_mas.errors import ConfigError


def test_a_file_is_loaded_once_whatever_its_path_is_written_as(tmp_path, monkeypatch):
    (tmp_path / "once.py").write_text("value = object()")
    monkeypatch.chdir(tmp_path)
    assert load_module("once.py", "mas.plugins") is load_module(str(tmp_path / "once.py"), "mas.plugins")


@pytest.mark.parametrize(
    "where", ["no_such_file.py", "no_such_package.module", "json.no_such_module", "a b", "", f"{'x' * 300}.py"]
)
def test_a_missing_file_or_module_is_refused_with_the_setting_that_names_it(where):
    with pytest.raises(ConfigError, match=f"mas.plugins={where}\n.*a Python file or the name of a module"):
        load_user_code(MasConfig(plugins=[where]))


def test_a_package_that_is_not_installed_is_named_with_its_line_and_exceptions_pass_through_on_every_load(tmp_path):
    (tmp_path / "mine.py").write_text("x = 1\nimport no_such_package\n")
    with pytest.raises(ConfigError, match=r"mine.py:2: No module named 'no_such_package'"):
        load_module(str(tmp_path / "mine.py"), "mas.plugins")
    (tmp_path / "broken.py").write_text("{}['key']\n")
    for _ in range(2):
        with pytest.raises(KeyError, match="key"):
            load_module(str(tmp_path / "broken.py"), "mas.plugins")
