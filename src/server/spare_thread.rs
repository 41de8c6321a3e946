//! A thread to spare, for when the system gives no more.
//!
//! What takes its time is lent a thread. Where none can be made, the runtime has it wait for one
//! that there is; is there none, it panics. The server would end just when no other can begin.

use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How long a thread stays that is lent to nobody.
pub(super) const IDLE: Duration = Duration::from_secs(60);
/// How often one is made use of, so that it stays: so often that a server which was stopped for a
/// while, or a machine that is slow, makes no difference.
const OFTEN: Duration = Duration::from_secs(15);

const _: () = assert!(3 * OFTEN.as_secs() < IDLE.as_secs());

/// Keeps a thread, as long as there is a server. It has nothing to do but to be there.
pub(super) async fn keep() {
    loop {
        let _ = spawn_blocking(|| ()).await;
        sleep(OFTEN).await;
    }
}
