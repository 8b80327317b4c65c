"""Untrusted XML: accepted and rejected documents."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.sources.errors import ParseError
from agent.sources.xml_tree import MAX_DEPTH, Element, parse_xml


def test_a_document_becomes_a_tree_with_its_lines() -> None:
    text = '\n <?xml version="1.0" ?>\n<!DOCTYPE a SYSTEM "a.dtd">\n<a x="1">\n one <b/>\n<b>two</b> three</a>'

    assert parse_xml(text) == Element(
        "a", {"x": "1"}, [Element("b", line=5), Element("b", text="two", line=6)], "one \n three", line=4
    )


def test_a_document_may_begin_after_other_text() -> None:
    assert parse_xml("Unknown Error\n<a/>", start=14) == Element("a", line=2)


def test_a_path_leads_to_the_first_match_or_nowhere() -> None:
    tree = parse_xml("<a><b><c>1</c></b><b><c>2</c></b></a>")

    found = tree.find("b/c")
    assert found is not None
    assert found.text == "1"
    assert tree.find("b/d/c") is None


def test_the_encoding_of_the_declaration_is_ignored() -> None:
    assert parse_xml('<?xml version="1.0" encoding="UTF-16"?><a>\u00e9</a>').text == "\u00e9"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param(
            '<!DOCTYPE a [\n<!ENTITY b "c">]><a>&b;</a>', "line 2: the document declares an entity, 'b'", id="e"
        ),
        pytest.param(
            '<!DOCTYPE a [<!ENTITY % b "c">]><a/>', "line 1: the document declares an entity, 'b'", id="param"
        ),
        pytest.param(
            '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/passwd">]><a>&b;</a>', "declares an entity", id="file"
        ),
        pytest.param('<!DOCTYPE a SYSTEM "a.dtd"><a>\n&b;</a>', "line 2: the document uses an entity, 'b'", id="used"),
        pytest.param("<a>" * 65 + "</a>" * 65, "line 1: <a> is nested more than 64 elements deep", id="deep"),
        pytest.param("\n<a>\n<b></a>", "line 3: not a complete XML document: mismatched tag", id="mismatched"),
        pytest.param("<a><b>", "line 1: not a complete XML document: no element found", id="cut"),
        pytest.param("", "line 1: not a complete XML document: no element found", id="empty"),
        pytest.param("<a>\x00</a>", "not well-formed", id="NUL"),
    ],
)
def test_unsafe_documents_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ParseError) as refusal:
        parse_xml(text)

    assert why in str(refusal.value)


def test_the_deepest_document_allowed_passes() -> None:
    assert parse_xml("<a>" * MAX_DEPTH + "</a>" * MAX_DEPTH).tag == "a"


@given(st.text() | st.text(alphabet="<>/a&!;?\"'= []\ud800"))
def test_any_text_is_a_document_or_a_parse_error(text: str) -> None:
    try:
        tree = parse_xml(text)
    except ParseError:
        return

    assert tree.tag
