//! What follows from each step of an upgrade, without a process.

use super::*;

fn refused(why: &str) -> Next {
    Next::GiveUp(Outcome::Refused(why.into()))
}

#[test]
fn the_old_one_is_ended_only_when_the_new_one_can_be_spoken_with() {
    let mut stage = Stage::Trying(None);
    assert_eq!(stage.on(Event::Accepted), Next::RetireServer);
    assert_eq!(stage.on(Event::OldGone), Next::TakeOver);
    assert_eq!(stage.on(Event::Serves), Next::Finish(Outcome::Upgraded));
}

#[test]
fn a_new_one_that_fails_before_leaves_the_old_one_alone() {
    assert_eq!(Stage::Trying(None).on(Event::Serves), Next::Wait, "the old one serves");
    let ended = Stage::Trying(None).on(Event::Ended(Status::Code(1)));
    assert!(matches!(ended, Next::GiveUp(Outcome::Refused(why)) if why.contains("code 1")));
    let late = Stage::Trying(None).on(Event::Late);
    assert!(matches!(late, Next::GiveUp(Outcome::Refused(why)) if why.contains("10s")));
    for end in [Event::Ended(Status::Code(1)), Event::Late] {
        let mut stage = Stage::Trying(None);
        assert_eq!(stage.on(Event::Refused("version 99".into())), Next::Wait);
        assert_eq!(stage.on(end), refused("version 99"));
    }
}

#[test]
fn a_new_one_that_was_refused_may_say_an_older_version() {
    let mut stage = Stage::Trying(None);
    assert_eq!(stage.on(Event::Refused("version 99".into())), Next::Wait);
    assert_eq!(stage.on(Event::Accepted), Next::RetireServer);
}

#[test]
fn an_old_one_that_does_not_retire_in_time_is_ended() {
    let mut stage = Stage::Trying(None);
    assert_eq!(stage.on(Event::Accepted), Next::RetireServer);
    assert_eq!(stage.on(Event::Late), Next::EndServer);
    assert_eq!(stage.on(Event::OldGone), Next::TakeOver);
}

#[test]
fn a_new_one_that_does_not_serve_in_time_is_ended_before_the_old_version_comes_back() {
    let mut stage = Stage::Proving(None);
    assert_eq!(stage.on(Event::Late), Next::EndServer);
    assert_eq!(stage.on(Event::Serves), Next::Wait, "too late");
    let back = stage.on(Event::Ended(Status::Signal(9)));
    assert!(matches!(back, Next::GoBack(Outcome::Undone(why)) if why.contains("10s")));
    let died = Stage::Proving(None).on(Event::Ended(Status::Signal(11)));
    assert!(matches!(died, Next::GoBack(Outcome::Undone(why)) if why.contains("signal 11")));
}

#[test]
fn a_new_one_that_dies_while_the_old_one_is_ended_changes_nothing_but_the_server() {
    let died = Stage::Replacing.on(Event::Ended(Status::Code(3)));
    assert!(matches!(died, Next::GiveUp(Outcome::Undone(why)) if why.contains("code 3")));
}

#[test]
fn a_keeper_that_stops_gives_up_what_has_not_taken_over() {
    for stage in [Stage::Trying(None), Stage::Replacing] {
        let mut stage = stage;
        assert!(matches!(stage.on(Event::Stopping), Next::GiveUp(_)));
    }
    assert!(matches!(Stage::Proving(None).on(Event::Stopping), Next::Finish(_)));
}
