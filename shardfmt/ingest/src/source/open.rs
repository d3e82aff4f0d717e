//! Opens some files as a source of their kind.

use super::chat::Conversations;
use super::csv::CsvSource;
use super::folder::FolderSource;
use super::ipc::IpcSource;
use super::json::JsonSource;
use super::libsvm::LibsvmSource;
use super::numpy::NumpySource;
use super::parquet::ParquetSource;
use super::text::TextSource;
use super::tfrecord::TfRecordSource;
use super::{Format, archive, mds};
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

impl Kind {
    pub(super) fn open(self, inputs: Inputs, config: &IngestConfig) -> Result<Box<dyn Format>, IngestError> {
        self.check_settings(config)?;
        let is_archive = matches!(self, Kind::Archive | Kind::WebDataset);
        if let (true, Some(under), false) = (inputs.is_file, &inputs.under, is_archive) {
            return Err(IngestError::NotUnder {
                path: inputs.path,
                under: under.clone(),
                there: "it is a single file, leave `under` out".to_owned(),
            });
        }
        let has_images = is_archive || matches!(self, Kind::Images | Kind::Mds | Kind::LitData);
        if config.decode && !has_images {
            return Err(IngestError::Config {
                setting: "decode",
                reason: format!("{} has no encoded images to find", self.description()),
                way_out: "leave it out",
            });
        }
        // `columns` are those of the samples: a table has those of its conversations and windows.
        let table = IngestConfig { columns: None, ..config.clone() };
        let config = if config.chat_template.is_some() || config.window.is_some() { &table } else { config };
        Ok(match self {
            Kind::Parquet => Box::new(ParquetSource::open(inputs, config)?),
            Kind::Arrow => Box::new(IpcSource::open(inputs, config)?),
            Kind::Csv | Kind::Tsv => Box::new(CsvSource::open(self, inputs, config)?),
            Kind::JsonLines if config.chat_template.is_some() => {
                Box::new(Conversations::of_lines(inputs, config)?)
            }
            Kind::JsonLines => Box::new(JsonSource::open(inputs, config)?),
            Kind::Numpy => Box::new(NumpySource::open(inputs, config)?),
            Kind::Libsvm => Box::new(LibsvmSource::open(inputs, config)?),
            Kind::Text => Box::new(TextSource::open(inputs, config)?),
            Kind::Images => Box::new(FolderSource::open(inputs, config)?),
            Kind::Archive | Kind::WebDataset => archive::open(inputs, config)?,
            Kind::TfRecord => Box::new(TfRecordSource::open(inputs, config)?),
            Kind::Mds | Kind::LitData => mds::open(self, inputs, config)?,
        })
    }
}
