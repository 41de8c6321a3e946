//! Worker threads for what calls make the server compute or read from disk.
//!
//! Owns a fixed number of threads and one queue for each caller in front of them. The threads take
//! jobs from the callers in turn, and one caller has at most half of the threads at a time: however
//! much a caller asks for, the next job of another caller begins at once or after one short job.
//! Callers split what takes long into short jobs (steps). A caller has at most as many jobs queued
//! as it has calls and streams open, since each of those waits for its job.

mod fair_queue;

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::sync::oneshot;

use super::error::Error;
use crate::telemetry::request::carried;
use fair_queue::FairQueue;

/// Threads of the pool, and how many of them one caller can have at a time.
const THREADS: usize = 4;
const THREADS_PER_CALLER: usize = THREADS / 2;

type Job = Box<dyn FnOnce() + Send>;

/// The threads, as long as this exists.
pub struct WorkerPool(Arc<Shared>);

/// A caller's way to the threads.
#[derive(Clone)]
pub struct Workers {
    shared: Arc<Shared>,
    caller: Arc<str>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Signalled for each job, and when the pool is gone.
    wakeup: Condvar,
}

struct Queue {
    jobs: FairQueue<Job>,
    is_closed: bool,
}

/// Whether a job that was split into steps is finished.
pub(super) enum Step<S, T> {
    /// The next step begins with this.
    More(S),
    /// The result.
    Done(T),
}

impl WorkerPool {
    /// Starts the threads: none is made later, when the system may have none left.
    pub fn start() -> io::Result<WorkerPool> {
        let jobs = FairQueue::new(THREADS_PER_CALLER);
        let queue = Mutex::new(Queue { jobs, is_closed: false });
        let pool = WorkerPool(Arc::new(Shared { queue, wakeup: Condvar::new() }));
        for n in 0..THREADS {
            let shared = Arc::clone(&pool.0);
            thread::Builder::new().name(format!("worker-{n}")).spawn(move || shared.work())?;
        }
        Ok(pool)
    }

    /// The way to the threads for one caller.
    pub fn for_caller(&self, caller: &str) -> Workers {
        Workers { shared: Arc::clone(&self.0), caller: caller.into() }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.wakeup.notify_all();
    }
}

impl Workers {
    /// Runs a short job on a worker thread. A job whose caller has left is not begun.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let job = carried(move || {
            if !reply.is_closed() {
                let _ = reply.send(job());
            }
        });
        self.shared.lock().jobs.push(&self.caller, Box::new(job));
        self.shared.wakeup.notify_one();
        // A job that panicked has dropped its end.
        answer.await.map_err(|_| Error::ShuttingDown)
    }

    /// Runs a long job step by step: between two steps others have their turn.
    pub(super) async fn run_steps<S: Send + 'static, T: Send + 'static>(
        &self,
        mut state: S,
        step: impl Fn(S) -> Step<S, T> + Clone + Send + 'static,
    ) -> Result<T, Error> {
        loop {
            let step = step.clone();
            match self.run(move || step(state)).await? {
                Step::More(next) => state = next,
                Step::Done(result) => return Ok(result),
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until the pool is gone.
    fn work(&self) {
        let mut queue = self.lock();
        while !queue.is_closed {
            let Some((caller, job)) = queue.jobs.pop() else {
                queue = self.wakeup.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            // The panic hook has logged it; the thread is needed for the next job.
            let _ = catch_unwind(AssertUnwindSafe(job));
            queue = self.lock();
            queue.jobs.finish(&caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn jobs_of_one_caller_leave_threads_for_others() {
        let pool = WorkerPool::start().unwrap();
        let (busy, other) = (pool.for_caller("busy"), pool.for_caller("other"));
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let blocked: Vec<_> = (0..2 * THREADS)
            .map(|_| {
                let (busy, released) = (busy.clone(), Arc::clone(&released));
                tokio::spawn(async move {
                    busy.run(move || released.lock().unwrap().recv().is_ok()).await
                })
            })
            .collect();
        tokio::task::yield_now().await;
        let answer = tokio::time::timeout(Duration::from_secs(20), other.run(|| 7)).await;
        assert_eq!(answer.unwrap(), Ok(7));
        drop(release);
        for job in blocked {
            assert_eq!(job.await.unwrap(), Ok(false));
        }
    }

    #[tokio::test]
    async fn panicking_job_leaves_the_threads_usable() {
        let pool = WorkerPool::start().unwrap();
        let workers = pool.for_caller("a");
        for _ in 0..2 * THREADS {
            assert_eq!(workers.run(|| -> u8 { panic!("a job") }).await, Err(Error::ShuttingDown));
        }
        assert_eq!(workers.run(|| 1).await, Ok(1));
    }

    #[tokio::test]
    async fn job_of_a_caller_that_left_is_skipped() {
        let pool = WorkerPool::start().unwrap();
        let workers = pool.for_caller("a");
        let (release, released) = mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let blocking = (0..THREADS_PER_CALLER).map(|_| {
            let (workers, released) = (workers.clone(), Arc::clone(&released));
            tokio::spawn(async move {
                workers.run(move || released.lock().unwrap().recv().is_ok()).await
            })
        });
        let blocking: Vec<_> = blocking.collect();
        tokio::task::yield_now().await;
        let (began, has_begun) = mpsc::channel();
        let abandoned = tokio::time::timeout(Duration::ZERO, workers.run(move || began.send(())));
        assert!(abandoned.await.is_err());
        drop(release);
        for job in blocking {
            job.await.unwrap().unwrap();
        }
        workers.run(|| ()).await.unwrap();
        assert!(has_begun.try_recv().is_err());
    }

    #[tokio::test]
    async fn steps_run_one_after_the_other() {
        let pool = WorkerPool::start().unwrap();
        let step = |n: u32| if n < 5 { Step::More(n + 1) } else { Step::Done(n * 2) };
        assert_eq!(pool.for_caller("a").run_steps(0, step).await, Ok(10));
    }
}
