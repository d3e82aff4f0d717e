//! A rank of a training as a process.

use std::io::{BufRead, BufReader, Lines, Read};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Killed when dropped, so that a failing test leaves nothing behind.
pub(crate) struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Rank {
    /// One with a single thread for tensors, whose standard output and error are read here.
    pub(crate) fn spawn(command: &mut Command) -> Rank {
        command.env("RAYON_NUM_THREADS", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
        Rank(command.spawn().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).expect("it has not been waited for");
    }

    /// Its standard output. A caller that does not read it must drop it, or the rank stops once it is full.
    pub(crate) fn lines(&mut self) -> Lines<BufReader<ChildStdout>> {
        BufReader::new(self.0.stdout.take().expect("it is asked for once")).lines()
    }

    /// Waits for its end: exit code, if it was not killed, and its output on standard error.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.0.wait().unwrap().code(), said)
    }
}

/// An address of this machine that is free.
pub(crate) fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}
