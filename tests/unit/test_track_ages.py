"""Goal: how fast a machine is follows from what its steps took lately, not from what they took once."""

from __future__ import annotations

from test_track_records import NODE, OTHER, WALL_S, result

from orchestrator.results import Kind
from orchestrator.track import TrackRecords
from trust.decay import DAY_S


def test_what_a_step_took_says_for_a_day_how_fast_a_machine_is() -> None:
    """It may have been busy with something else, or lend less since; to judge its reliability a day is little."""
    records = TrackRecords()
    for number, seconds in enumerate((8.0, 8.0, 2.0)):
        records.take(result(number, seconds=seconds, time_s=WALL_S + 0.5 * number * DAY_S))
    records.take(result(9, pnode_id=OTHER, kind=Kind.PROVISIONED, time_s=WALL_S + DAY_S))
    records.take(result(9, pnode_id=OTHER, seconds=2.0, time_s=WALL_S + DAY_S))
    paces = {}
    for hours in (24, 25, 37, 49):
        assert records.refresh(WALL_S + hours * 3600.0)
        track = records.tracks(lambda _: 50.0)[NODE]
        paces[hours] = (round(track.pace), track.is_timed)
    assert paces == {24: (4, True), 25: (1, True), 37: (1, True), 49: (1, False)}
    assert not records.paces(), "nobody was timed lately"
    assert records.expected()["Linear", "cpu/x"].provisioning_s is not None
    assert not records.refresh(WALL_S + 49.5 * 3600.0), "not everything is looked at all the time"
