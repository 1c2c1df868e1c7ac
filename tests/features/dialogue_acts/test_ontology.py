"""The database against a search of every row."""

from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import AREAS, DATABASE, FOODS, ONTOLOGY, PLACES

from rl4dialog.features.dialogue_acts.tasks.ontology import Database, Domain, Ontology, minutes

TIMES = st.sampled_from(["08:00", "09:30", "10:30", "12:00", "14:59", "23:59", "00:00", "noon", "dontcare"])
CONSTRAINTS = st.one_of(
    st.tuples(
        st.just("restaurant"),
        st.fixed_dictionaries(
            {},
            optional={
                slot: st.sampled_from([*values, "dontcare"]) for slot, values in (("food", FOODS), ("area", AREAS))
            },
        ),
    ),
    st.tuples(
        st.just("train"),
        st.fixed_dictionaries({}, optional={"to": st.sampled_from([*PLACES, "dontcare", "nowhere"]), "arrive": TIMES}),
    ),
)


def fits(row, slot, value):
    if value == "dontcare":
        return True
    if slot != "arrive":
        return row.get(slot) == value
    limit, own = minutes(value), minutes(row[slot])
    return limit is not None and own is not None and own <= limit


@given(CONSTRAINTS)
@settings(max_examples=200, deadline=None)
def test_query_equals_a_scan_of_all_rows(case):
    domain, constraints = case
    rows = DATABASE.entities(domain)
    expected = [i for i, row in enumerate(rows) if all(fits(row, *item) for item in constraints.items())]
    assert list(DATABASE.query(domain, constraints)) == expected
    assert list(Database(ONTOLOGY, {domain: rows}).query(domain, dict(reversed(constraints.items())))) == expected


def test_bounds_from_below_and_entities_without_a_time():
    ontology = Ontology([Domain("bus", ("leave",), (), (), "id", {"leave": "at least"}, times=("leave",))])
    rows = [{"id": "1", "leave": "09:00"}, {"id": "2"}, {"id": "3", "leave": "11:00"}]
    database = Database(ontology, {"bus": rows})
    assert database.query("bus", {"leave": "09:00"}) == (0, 2)
    assert database.query("bus", {"leave": "09:01"}) == (2,)
    assert database.query("bus", {"leave": "soon"}) == ()
    assert database.query("bus", {"leave": "dontcare"}) == (0, 1, 2)


def test_entities_are_found_by_key_even_if_several_share_it():
    ontology = Ontology([Domain("bus", ("to",), (), (), "id")])
    database = Database(ontology, {"bus": [{"id": "7", "to": "a"}, {"id": "7", "to": "b"}, {"id": "8", "to": "a"}]})
    assert [row["to"] for row in database.named("bus", "7")] == ["a", "b"]
    assert database.named("bus", "9") == ()
    assert database.values("bus", "to") == {"a", "b"}
