//! Turns Ctrl-C and SIGTERM into a question the demo asks between two looks at its processes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::signals;

/// Whether the user wants the demo to stop.
#[derive(Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, on a thread of its own. A second signal finds the demo stopping its processes already; it
    /// need not be heard.
    pub(crate) fn listen() -> io::Result<Interrupt> {
        let raised = Arc::new(AtomicBool::new(false));
        let seen = raised.clone();
        signals::at_first(move || seen.store(true, Ordering::Release))?;
        Ok(Interrupt(raised))
    }

    /// Fails once the user does.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self.0.load(Ordering::Acquire) {
            true => Err(Failure::failed("interrupted; all processes were stopped")),
            false => Ok(()),
        }
    }
}
