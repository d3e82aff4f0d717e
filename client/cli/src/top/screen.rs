//! The terminal while `top` has it. However it ends, the terminal is as it was before.

use std::io::{self, Stdout, Write};
use std::panic;

use crossterm::cursor::{Hide, Show};
use crossterm::execute;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::backend::CrosstermBackend;
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal};
use rustix::process::{Signal, getpid, kill_process};

/// A terminal in raw mode, with a screen of its own.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal until the screen is dropped, or the process panics.
    pub(super) fn open() -> io::Result<Screen> {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            // The message belongs on the usual screen.
            release();
            before(panic);
        }));
        take()?;
        match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => Ok(Screen { terminal }),
            Err(error) => {
                release();
                Err(error)
            }
        }
    }

    /// Its size at present.
    pub(super) fn area(&self) -> io::Result<Rect> {
        let size = self.terminal.size()?;
        Ok(Rect::new(0, 0, size.width, size.height))
    }

    /// Draws a frame: the cells that have changed since the last one.
    pub(super) fn draw(&mut self, frame: impl FnOnce(&mut Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(frame).map(drop)
    }

    /// Has the next frame drawn whole.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        // `Terminal::clear` asks the terminal for its cursor, which not every one says.
        let area = self.area()?;
        self.terminal.resize(area)
    }

    /// Gives the terminal back and stops the process as a job, until its shell continues it.
    pub(super) fn suspend(&mut self) -> io::Result<()> {
        release();
        kill_process(getpid(), Signal::TSTP)?;
        take()?;
        self.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        release();
    }
}

fn take() -> io::Result<()> {
    enable_raw_mode()?;
    execute!(io::stdout(), EnterAlternateScreen, Hide).inspect_err(|_| release())
}

/// Leaves the terminal as it was. A terminal that is gone needs nothing.
fn release() {
    let _ = disable_raw_mode();
    let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    let _ = io::stdout().flush();
}
