//! Texts from people: names of versions, sizes, schedules of Q.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use shardd_plan::Schedule;
use shardfmt::{ByteSize, DatasetRef};

/// A text accepted and written again is accepted as the same.
pub(crate) fn text(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let accepted = [again::<DatasetRef>(text), again::<Schedule>(text), text.parse::<ByteSize>().is_ok()];
    accepted.contains(&true)
}

fn again<T: FromStr<Err: Debug> + Display + Debug + PartialEq>(text: &str) -> bool {
    let Ok(value) = text.parse::<T>() else { return false };
    assert_eq!(value.to_string().parse::<T>().expect("the written text is read"), value);
    true
}
