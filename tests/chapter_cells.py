"""Run the cells of one claim of a chapter, as they stand in the notebook, under a mutation.

A claim's cells need the cells tagged `setup` and nothing else; so each claim's experiment can be
run alone, and broken alone, to see its assertions fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

import residual_stream as rs

CHAPTERS = Path(__file__).parents[1] / "chapters"
Namespace = dict[str, Any]
Mutation = Callable[[Namespace], AbstractContextManager[Any]]


class Chapter:
    """A chapter's notebook with its setup cells run once."""

    def __init__(self, name: str) -> None:
        self.cells = [
            cell
            for cell in nbformat.read(CHAPTERS / f"{name}.ipynb", as_version=4).cells
            if cell.cell_type == "code"
        ]
        self.namespace: Namespace = {"__name__": "chapter"}
        self._run(self._tagged("setup"), self.namespace)

    def claims(self) -> list[str]:
        """The claims that have cells here, in order."""
        tags = [tag for cell in self.cells for tag in cell.metadata.get("tags", [])]
        return [
            tag.removeprefix("claim-") for tag in dict.fromkeys(tags) if tag.startswith("claim-")
        ]

    def run(
        self, claim: str, mutation: Mutation | None = None, rewrite: tuple[str, str] | None = None
    ) -> Namespace:
        """Run the cells of a claim on a copy of the namespace; return the copy.

        Args:
            claim: The claim's id.
            mutation: A context in which the cells run; it may change the namespace it is given.
            rewrite: A piece of the cells' source and what to put in its place.
        """
        namespace = dict(self.namespace)
        sources = self._tagged(f"claim-{claim}")
        if rewrite is not None:
            old, new = rewrite
            assert any(old in source for source in sources), f"{claim}: no cell contains {old!r}"
            sources = [source.replace(old, new) for source in sources]
        with mutation(namespace) if mutation is not None else nullcontext():
            self._run(sources, namespace)
        return namespace

    def records_as_before(self) -> bool:
        """Whether the model still writes, to the bit, what it wrote in the setup cells."""
        stream = self.namespace["stream"]
        again = rs.record(self.namespace["model"], stream.tokens)
        return torch.equal(again.writes, stream.writes)

    def _tagged(self, tag: str) -> list[str]:
        return [cell.source for cell in self.cells if tag in cell.metadata.get("tags", [])]

    @staticmethod
    def _run(sources: list[str], namespace: Namespace) -> None:
        folder = Path.cwd()
        os.chdir(CHAPTERS)
        try:
            for source in sources:
                exec(compile(source, "<cell>", "exec"), namespace)
        finally:
            os.chdir(folder)


class ClaimTests:
    """The tests that every chapter of claims has; its file subclasses this and says which.

    Attributes:
        name: The chapter's notebook.
        claims: The claims that it tests.
        mutations: By what they break: the claim, and how :meth:`Chapter.run` is to break it.
    """

    name: str
    claims: tuple[str, ...]
    mutations: dict[str, tuple[str, dict[str, Any]]]

    @pytest.fixture(scope="class")
    @classmethod
    def chapter(cls) -> Chapter:
        return Chapter(cls.name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        for argument, values in (("claim", self.claims), ("what", list(self.mutations))):
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, values)

    def test_every_claim_of_the_chapter_is_on_the_page_and_has_a_mutation(self, chapter):
        broken = {claim for claim, _ in self.mutations.values()}
        assert set(chapter.claims()) == set(self.claims) == broken

    def test_the_experiment_of_a_claim_stands_alone(self, chapter, claim):
        chapter.run(claim)

    def test_the_experiment_of_a_claim_fails_when_it_is_broken(self, chapter, what):
        claim, how = self.mutations[what]
        with pytest.raises(AssertionError):
            chapter.run(claim, **how)

    def test_the_mutations_left_the_model_as_it_was(self, chapter):
        assert chapter.records_as_before()


def replacing(name: str, change: Callable[[Any], Any]) -> Mutation:
    """A mutation that changes one value that the setup cells left behind."""

    @contextmanager
    def mutation(namespace: Namespace) -> Iterator[None]:
        namespace[name] = change(namespace[name])
        yield

    return mutation


def without_write(index: int) -> Callable[[rs.ResidualStream], rs.ResidualStream]:
    """A change of a stream that loses one of its writes."""

    def change(stream: rs.ResidualStream) -> rs.ResidualStream:
        writes = stream.writes.clone()
        writes[index] = 0
        return replace(stream, writes=writes)

    return change


def patching(owner: Any, name: str, broken: Callable[[Any], Any]) -> Mutation:
    """A mutation that puts `broken(original)` in the place of one function while cells run."""

    @contextmanager
    def mutation(namespace: Namespace) -> Iterator[None]:
        original = getattr(owner, name)
        setattr(owner, name, broken(original))
        try:
            yield
        finally:
            setattr(owner, name, original)

    return mutation


def scaling(parameter: Callable[[Namespace], torch.Tensor], factor: float) -> Mutation:
    """A mutation that multiplies one weight while the cells run, and restores it to the bit."""

    @contextmanager
    def mutation(namespace: Namespace) -> Iterator[None]:
        weight = parameter(namespace)
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.mul_(factor)
        try:
            yield
        finally:
            with torch.no_grad():
                weight.copy_(kept)

    return mutation


def hooking(model: str, *hooks: tuple[str, Callable[..., Any]]) -> Mutation:
    """A mutation that keeps hooks on a model of the namespace while the cells run."""
    return lambda namespace: namespace[model].hooks(fwd_hooks=list(hooks))
