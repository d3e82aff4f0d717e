//! Ctrl-C, and the polite ways to end a process.

use std::io::{self, IsTerminal};
use std::os::fd::AsRawFd;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use tokio::signal::unix::{SignalKind, signal};

/// The exit code that a shell expects of a process that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
/// The exit code of a process whose terminal closed: that of SIGHUP.
const HUNG_UP: i32 = 129;

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

/// Ends the process when the terminal at its standard input closes. crossterm reads a closed terminal in a loop without an end,
/// and there is no screen left to restore.
pub(crate) fn end_with_terminal() -> io::Result<()> {
    // Where standard input is a pipe, keys come from the terminal of the session, which sends SIGHUP.
    if !io::stdin().is_terminal() {
        return Ok(());
    }
    let (mut poll, terminal) = (Poll::new()?, io::stdin().as_raw_fd());
    if poll.registry().register(&mut SourceFd(&terminal), Token(0), Interest::READABLE).is_err() {
        return Ok(());
    }
    std::thread::Builder::new().name("terminal".into()).spawn(move || {
        let mut events = Events::with_capacity(1);
        loop {
            match poll.poll(&mut events, None) {
                Ok(()) if events.iter().any(|event| event.is_error() || event.is_read_closed()) => {
                    std::process::exit(HUNG_UP)
                }
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(())
}
