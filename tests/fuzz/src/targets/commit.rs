//! Commits, as they are.

use shardfmt::Commit;

/// What is accepted as a commit has one form and one id.
pub(crate) fn commit(data: &[u8]) -> bool {
    let Ok(commit) = Commit::from_bytes(data) else { return false };
    let again = Commit::from_bytes(&commit.to_bytes()).expect("what was written is read");
    assert_eq!(again, commit);
    assert_eq!(again.id(), commit.id());
    true
}
