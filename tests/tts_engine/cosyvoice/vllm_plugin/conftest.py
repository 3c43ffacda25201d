import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    """vLLM leaves a context of ZMQ to the garbage collector, which comes to it in whichever test of this folder runs
    then."""
    item.add_marker(pytest.mark.filterwarnings("default:Unclosed context:ResourceWarning"))
