//! Catches panics of libraries that read bytes from outside: a panic becomes an error, and nothing else of it
//! is printed.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Whether panics of this thread are caught, and become errors.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a reader of someone else's making on bytes of someone else's making: `None` if it panicked, which has then not
/// read anything. Its input must not be used again.
pub(super) fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    hush_caught_panics();
    let before = IS_CAUGHT.replace(true);
    let read = catch_unwind(AssertUnwindSafe(read)).ok();
    IS_CAUGHT.set(before);
    read
}

/// From here on panics are reported as they were before, but for those that are caught above.
fn hush_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let report = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                report(panic);
            }
        }));
    });
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::process::Command;

    use super::*;

    /// Set in the process that panics.
    const PANICS: &str = "SHARDFMT_TEST_PANICS";

    #[test]
    fn a_panic_that_is_caught_prints_nothing_and_any_other_does() {
        if env::var_os(PANICS).is_some() {
            assert_eq!(caught(|| panic!("of a reader")), None::<u8>);
            panic!("of ours");
        }
        let this = "source::caught::tests::a_panic_that_is_caught_prints_nothing_and_any_other_does";
        let mut child = Command::new(env::current_exe().expect("this test"));
        child.args([this, "--exact", "--nocapture"]).env(PANICS, "1");
        let printed = child.output().expect("it runs").stderr;
        let printed = String::from_utf8_lossy(&printed);
        assert!(printed.contains("of ours") && !printed.contains("of a reader"), "{printed}");
    }
}
