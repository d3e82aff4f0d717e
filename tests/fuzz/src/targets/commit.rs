//! Commits, as they are.

use shardfmt::Commit;

/// Bytes accepted as a commit have one form and one id.
pub(crate) fn commit(data: &[u8]) -> bool {
    let Ok(commit) = Commit::from_bytes(data) else { return false };
    let again = Commit::from_bytes(&commit.to_bytes()).expect("the written bytes are read");
    assert_eq!(again, commit);
    assert_eq!(again.id(), commit.id());
    true
}
