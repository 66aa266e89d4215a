"""Maps between vocabularies, worked out by hand."""

from flyweight.draft.vocabulary import Token, is_same, map_ids

TARGET: list[Token] = [("<s>", b"<s>"), ("a", b"a"), ("▁the", b" the"), ("b", b"b"), ("", b"")]


def test_a_permuted_vocabulary_is_mapped_both_ways() -> None:
    draft = [TARGET[i] for i in (3, 0, 2, 1)]
    ids = map_ids(TARGET, draft)
    assert ids.to_draft.tolist() == [1, 3, 2, 0, -1]
    assert ids.to_target.tolist() == [3, 0, 2, 1]
    assert ids.share == 0.8


def test_tokens_of_one_text_are_mapped_where_the_spelling_differs() -> None:
    draft: list[Token] = [("Ġthe", b" the"), ("<0x61>", b"a"), ("a", b"a"), ("c", b"c")]
    ids = map_ids(TARGET, draft)
    assert ids.to_draft.tolist() == [-1, 2, 0, -1, -1]
    assert ids.to_target.tolist() == [2, -1, 1, -1]
    assert ids.share == 0.4


def test_tokens_without_text_are_never_mapped() -> None:
    assert map_ids(TARGET, [("", b"")]).to_target.tolist() == [-1]


def test_a_longer_vocabulary_is_the_same() -> None:
    assert is_same(TARGET, [*TARGET, ("x", b"x")]) and is_same(TARGET, TARGET[:3])
    assert not is_same(TARGET, [*TARGET[:2], ("The", b"The")])
