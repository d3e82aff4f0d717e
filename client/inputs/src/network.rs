//! What waits for networks: a runtime of its own, so that the threads that decode can wait for it, and one budget for
//! all that is fetched before it is asked for.

use std::future::Future;
use std::io;
use std::sync::{Arc, OnceLock};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use super::InputsError;

/// The limit of bytes held before a reader asks for them, in KiB.
const BUDGET_KIB: u32 = 48 << 10;
/// The least count for a small file: enough of them are under way at once to hide latency, and few enough for
/// the store.
const LEAST_KIB: u32 = 768;

/// Started when something far away is first spoken of.
#[derive(Clone, Debug, Default)]
pub(super) struct Network(Arc<OnceLock<Running>>);

#[derive(Debug)]
struct Running {
    /// Taken when this is dropped.
    runtime: Option<Runtime>,
    budget: Arc<Semaphore>,
}

/// Bytes that are fetched before they are asked for. Dropping it stops that.
#[derive(Debug)]
pub(super) struct Early<T> {
    task: AbortOnDropHandle<T>,
    _share: OwnedSemaphorePermit,
}

impl Network {
    /// Makes sure that there is one.
    pub(super) fn start(&self) -> Result<(), InputsError> {
        if self.0.get().is_some() {
            return Ok(());
        }
        shardd_store::tls::use_ring();
        let runtime =
            Builder::new_multi_thread().worker_threads(1).thread_name("inputs").enable_all().build();
        let runtime = runtime.map_err(|source| InputsError::Start { source })?;
        let budget = Arc::new(Semaphore::new(BUDGET_KIB as usize));
        let _ = self.0.set(Running { runtime: Some(runtime), budget });
        Ok(())
    }

    fn running(&self) -> &Running {
        self.0.get().expect("started before anything was found")
    }

    fn handle(&self) -> &Handle {
        self.running().runtime.as_ref().expect("there until it is dropped").handle()
    }

    /// Waits for it on this thread.
    pub(super) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle().block_on(work)
    }

    /// Starts something that will give this number of bytes, if there is room for them.
    pub(super) fn early<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<Early<T>> {
        let share = u32::try_from(bytes.div_ceil(1 << 10)).ok()?.max(LEAST_KIB);
        let share = self.running().budget.clone().try_acquire_many_owned(share).ok()?;
        Some(Early { task: AbortOnDropHandle::new(self.handle().spawn(work)), _share: share })
    }

    /// Waits for the started work.
    pub(super) fn finish<T>(&self, early: Early<io::Result<T>>) -> io::Result<T> {
        self.wait(early.task).map_err(io::Error::other)?
    }
}

impl Drop for Running {
    /// Nothing is under way any more that has to be finished, and the code that drops this may not be allowed
    /// to wait.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
