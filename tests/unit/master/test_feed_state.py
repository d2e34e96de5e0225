"""What is known of a feed: since when changes are reported, and whether it is up to date."""

from __future__ import annotations

from master.state.feed_state import FeedState


def test_nothing_is_trusted_before_the_first_report() -> None:
    assert FeedState().since(10.0, 60.0) is None


def test_changes_are_reported_since_the_feed_was_up_to_date_first() -> None:
    feed = FeedState()
    feed.current(10.0)
    feed.current(50.0)
    assert feed.since(60.0, 30.0) == 10.0
    assert feed.since(80.0, 30.0) is None, "the feed is late"
    feed.current(100.0)
    assert feed.since(101.0, 30.0) == 10.0, "what was reported late was reported"


def test_a_clock_that_was_set_back_is_not_trusted() -> None:
    feed = FeedState()
    feed.current(50.0)
    assert feed.since(50.0, 30.0) == 50.0
    assert feed.since(49.0, 30.0) is None


def test_after_a_loss_only_later_names_are_trusted() -> None:
    feed = FeedState()
    assert not feed.lost(5.0), "nothing was trusted"
    feed.current(10.0)
    assert feed.lost(11.0)
    assert feed.since(11.0, 30.0) is None
    feed.current(20.0)
    assert feed.since(21.0, 30.0) == 20.0


def test_a_report_that_began_before_a_loss_makes_nothing_of_before_trusted() -> None:
    feed = FeedState()
    feed.current(10.0)
    feed.lost(20.0)
    feed.current(19.0)
    assert feed.since(21.0, 30.0) == 20.0


def test_an_error_ends_with_the_next_report() -> None:
    feed = FeedState()
    feed.failed("no route")
    assert feed.error == "no route"
    feed.current(1.0)
    assert feed.error == ""


def test_a_restart_waits_until_the_feed_is_up_to_date() -> None:
    earlier, feed = FeedState(), FeedState()
    assert earlier.record("sqs:x") is None
    earlier.current(10.0)
    kept = earlier.record("sqs:x")
    assert kept is not None
    feed.restore(kept)
    assert feed.since(111.0, 30.0) is None
    feed.current(112.0)
    assert feed.since(113.0, 30.0) == 10.0


def test_names_are_counted() -> None:
    feed = FeedState()
    feed.names_reported(0, 5.0)
    assert (feed.reported, feed.reported_at) == (0, 0.0)
    feed.names_reported(3, 6.0)
    assert (feed.reported, feed.reported_at) == (3, 6.0)
