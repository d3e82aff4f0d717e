//! Files of one dataset, which need the same columns. Knows nothing of what kind they are.

use arrow::datatypes::SchemaRef;
use shardfmt::InputDigest;

use super::Feed;
use crate::config::OnError;
use crate::error::one_line;
use crate::input::InputFile;
use crate::{IngestConfig, IngestError, canonical};

/// Files that were opened.
#[derive(Debug)]
pub(super) struct Alike<F> {
    pub(super) files: Vec<F>,
    /// Name of each file that cannot be opened, or has other columns, where those are skipped; and why.
    skipped: Vec<(String, String)>,
    /// The columns of all of them; `None` if there are no files.
    pub(super) schema: Option<SchemaRef>,
}

impl<F> Alike<F> {
    /// Opens files with `open`, which also says what their columns are, and compares those with the first's.
    pub(super) fn open(
        files: Vec<InputFile>,
        config: &IngestConfig,
        open: impl Fn(InputFile) -> Result<(F, SchemaRef), IngestError>,
    ) -> Result<Alike<F>, IngestError> {
        let (mut opened, mut skipped) = (Vec::new(), Vec::new());
        let mut common: Option<(SchemaRef, String)> = None;
        for file in files {
            let (name, path) = (file.name.clone(), file.path.clone());
            let fitting = open(file).and_then(|(file, schema)| match &common {
                None => Ok((file, schema)),
                Some((known, first)) => {
                    canonical::common(known, first, &schema, &path).map(|widened| (file, widened))
                }
            });
            match fitting {
                Ok((file, schema)) => {
                    let first = common.map_or(name, |(_, first)| first);
                    common = Some((schema, first));
                    opened.push(file);
                }
                Err(error) if config.on_error == OnError::Skip && error.is_about_content() => {
                    skipped.push((name, one_line(error)));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(Alike { files: opened, skipped, schema: common.map(|(schema, _)| schema) })
    }

    /// Has all files read, and returns what `read` gives for each, their digests.
    pub(super) fn pieces<'s>(
        &'s self,
        feed: &mut Feed<'_, 's>,
        read: impl Fn(&'s F, &mut Feed<'_, 's>) -> Result<InputDigest, IngestError>,
    ) -> Result<Vec<InputDigest>, IngestError> {
        feed.all_left_out(&self.skipped)?;
        self.files.iter().map(|file| read(file, feed)).collect()
    }
}
