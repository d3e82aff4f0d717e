//! Turns Ctrl-C and SIGTERM into a question the demo asks between two looks at its processes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::signal::unix::{SignalKind, signal};

use crate::failure::Failure;

/// Whether somebody wants the demo to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, on a thread of its own that ends with the process.
    pub(crate) fn listen() -> io::Result<Interrupt> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let guard = runtime.enter();
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hangup = signal(SignalKind::hangup())?;
        drop(guard);
        let raised = Arc::new(AtomicBool::new(false));
        let seen = raised.clone();
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
            });
            seen.store(true, Ordering::Release);
            // A second signal finds the demo stopping its processes already; it need not be heard.
            runtime.block_on(std::future::pending::<()>());
        })?;
        Ok(Interrupt(raised))
    }

    /// Fails once somebody does.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Failure::failed("interrupted; all processes were stopped")),
            false => Ok(()),
        }
    }
}
