//! Ctrl-C, and the polite ways to end a process.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// The exit code that a shell expects of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Calls `act` on a thread of its own at the first SIGINT, SIGTERM or SIGHUP from now on; later ones do nothing.
pub(crate) fn at_first(act: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        act();
    })?;
    Ok(())
}

/// Ends the process at the first such signal, with `last_words`, which get the exit code. For work that loses
/// nothing.
pub(crate) fn end_with(last_words: impl FnOnce(u8) + Send + 'static) -> io::Result<()> {
    at_first(move || {
        last_words(INTERRUPTED);
        std::process::exit(INTERRUPTED.into())
    })
}
