//! LitData's optimized directories: an `index.json` and the chunks that it lists. A chunk begins with the table of a shard of
//! MDS, and its samples are read as those; the differences are here.

mod formats;
mod framed;
mod index;
mod rows;

pub(super) use self::formats::Form;
pub(super) use self::framed::{Framed, inflate};
pub(super) use self::index::Index;
pub(super) use self::rows::{RowsSource, has_rows_alone};
