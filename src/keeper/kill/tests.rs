//! A SIGKILL has time from its first look on, and names what an earlier look has signalled.

use super::*;

fn found() -> Found {
    let (tried, unkillable) = (HashMap::new(), Vec::new());
    Found { members: Vec::new(), is_empty: false, some_new: false, tried, unkillable }
}

#[test]
fn kill_that_waits_for_its_first_look_is_not_late() {
    let mut kill = Kill::new(1, None);
    let much_later = Instant::now() + std::time::Duration::from_secs(3600);
    assert_eq!(kill.named(much_later), Named::None);
    kill.progress = Some(Progress::begin(Instant::now()));
    assert_eq!(kill.named(much_later), Named::All);
    kill.answered = true;
    assert_eq!(kill.named(much_later), Named::None, "it is answered once");
}

#[test]
fn process_found_for_the_first_time_is_not_unkillable() {
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let member = Member::find(child.id().cast_signed(), || true).unwrap();
    let mut kill = Kill::new(1, None);
    let mut first = found();
    kill.signal(&member, &mut first, Named::SignalledBefore);
    assert_eq!(first.unkillable, []);
    kill.tried = first.tried;
    let mut second = found();
    kill.signal(&member, &mut second, Named::SignalledBefore);
    assert_eq!(second.unkillable[0].process, member.describe());
    child.wait().unwrap();
}
