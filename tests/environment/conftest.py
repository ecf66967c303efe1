"""Tests may be coroutines."""

from async_tests import pytest_pyfunc_call as pytest_pyfunc_call
