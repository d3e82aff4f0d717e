//! Archives of images, whose folders are the labels. Also tells them from archives whose members belong together by key.
//!
//! Two walks: one by names alone, since the schema (labels, columns) is known only when all names are; one that reads.

use std::collections::HashSet;

use arrow::array::RecordBatch;
use shardfmt::InputDigest;

use super::images::{self, LARGEST_IMAGE, Labels, Layout, Load, Place, Rows};
use super::keyed::{self, Survey};
use super::picture::{self, Pictures};
use super::tars::{LARGEST_MEMBER, Member, Seen, Tar, Tars, Twice};
use super::webdataset::{self, OwnSchema, WebDatasetSource};
use super::{About, Faults, Feed, Format, Stopped, arrays};
use crate::config::OnError;
use crate::image_size::ImageSize;
use crate::inputs::Inputs;
use crate::kind::Kind;
use crate::{IngestConfig, IngestError};

#[derive(Debug)]
pub(super) struct ArchiveSource {
    about: About,
    tars: Tars,
    labels: Labels,
    pictures: Pictures,
}

/// Opens archives by their own kind, or by that of the settings.
pub(super) fn open(inputs: Inputs, config: &IngestConfig) -> Result<Box<dyn Format>, IngestError> {
    let mut tars = Tars::open(inputs, config)?;
    let mut look = Look::new(config);
    for tar in &tars.tars {
        let walked = look.walk(tar, tars.under.as_deref());
        if let Err(error) = walked
            && (config.on_error == OnError::Fail || !error.is_about_content())
        {
            return Err(error);
        }
    }
    let Look { layout, survey, own_schema, size, passed, images, keyed, .. } = look;
    let own_schema = own_schema.filter(OwnSchema::is_there);
    let is_keyed = match config.format {
        Some(Kind::WebDataset) => true,
        Some(Kind::Archive) => false,
        _ => own_schema.is_some() || survey.is_keyed(),
    };
    let found = if is_keyed { keyed } else { images };
    if let Some(error) = found.first_fault {
        return Err(error);
    }
    for (tar, twice) in tars.tars.iter_mut().zip(found.twice) {
        tar.twice = twice;
    }
    if is_keyed {
        return Ok(Box::new(WebDatasetSource::open(tars, &survey, own_schema, passed, config)?));
    }
    Kind::Images.check_settings(config)?;
    let labels = layout.labels(&tars.path, tars.under.as_deref())?;
    let pictures = Pictures::new(config, || {
        let found = "no image that can be read".to_owned();
        size.ok_or_else(|| IngestError::NoSamples { path: tars.path.clone(), found })
    })?;
    let (schema, passed_over) = (labels.schema(pictures), layout.skipped + tars.others);
    let about = About { schema, rows: Some(layout.images), passed_over };
    Ok(Box::new(ArchiveSource { about, tars, labels, pictures }))
}

/// The result of the first walk, for each of the two kinds of archives.
struct Look<'c> {
    config: &'c IngestConfig,
    layout: Layout,
    images: Found,
    survey: Survey,
    keyed: Found,
    own_schema: Option<OwnSchema>,
    /// Of the first image.
    size: Option<ImageSize>,
    /// Members that belong to no sample.
    passed: u64,
}

#[derive(Default)]
struct Found {
    /// The fault of a member, if that ends the ingest.
    first_fault: Option<IngestError>,
    /// For each archive: names that are there twice.
    twice: Vec<Twice>,
}

impl Found {
    fn fault(&mut self, error: IngestError, config: &IngestConfig) {
        if config.on_error == OnError::Fail {
            self.first_fault.get_or_insert(error);
        }
    }
}

impl<'c> Look<'c> {
    fn new(config: &'c IngestConfig) -> Look<'c> {
        Look {
            config,
            layout: Layout::default(),
            images: Found::default(),
            survey: Survey::default(),
            keyed: Found::default(),
            own_schema: None,
            size: None,
            passed: 0,
        }
    }

    fn walk(&mut self, tar: &Tar, under: Option<&str>) -> Result<(), IngestError> {
        let (mut names, mut keys, mut is_first) = (Seen::default(), Seen::default(), true);
        let walked = tar.look(|member| {
            if std::mem::take(&mut is_first) {
                let own = OwnSchema::of(member, tar)?;
                let is_there = own.is_there();
                own.check(&mut self.own_schema)?;
                if is_there {
                    return Ok(());
                }
            }
            self.see(member, under, &mut names, &mut keys)
        });
        self.survey.end_run();
        let (names, keys) = (names.twice(), keys.twice());
        if walked.is_ok() && !keys.is_empty() && !self.survey.is_keyed() {
            self.survey.see_scattered(webdataset::has_scattered(tar, under, &keys)?);
        }
        if self.config.on_error == OnError::Fail && walked.is_ok() {
            let error = if names.is_empty() { None } else { first_twice(tar, &names)? };
            error.into_iter().for_each(|error| self.images.fault(error, self.config));
            let error = if keys.is_empty() { None } else { webdataset::first_again(tar, under, &keys)? };
            error.into_iter().for_each(|error| self.keyed.fault(error, self.config));
        }
        self.images.twice.push(names);
        self.keyed.twice.push(keys);
        walked
    }

    fn see(
        &mut self,
        member: &mut Member<'_>,
        under: Option<&str>,
        names: &mut Seen,
        keys: &mut Seen,
    ) -> Result<(), IngestError> {
        let (config, name) = (self.config, member.name.clone());
        let key = keyed::within(&name, under);
        let is_image = images::is_named(&name);
        if let Some(error) = member.refusal(LARGEST_IMAGE).filter(|_| is_image) {
            self.images.fault(error, config);
        } else if member.fault.is_none() {
            match self.layout.add(under, &name) {
                Place::Image => names.add(&name),
                Place::Unread => self.images.fault(images::unread(member.archive(), &name), config),
                Place::Elsewhere => {}
            }
        }
        let Some((key, suffix)) = key else {
            self.passed += 1;
            return Ok(());
        };
        if let Some(error) = member.refusal(LARGEST_MEMBER) {
            self.keyed.fault(error, config);
            return Ok(());
        }
        match self.survey.add(key, suffix) {
            Ok(true) => keys.add(key),
            Ok(false) => {}
            Err(reason) => self.keyed.fault(member.misfit(reason), config),
        }
        let wants_size = config.decode && config.resize.is_none() && is_image && member.size <= LARGEST_IMAGE;
        if wants_size && (self.size.is_none() || self.survey.wants_size(suffix)) {
            match picture::size_of(&member.read(LARGEST_IMAGE)?) {
                Ok(size) => {
                    self.size.get_or_insert(size);
                    self.survey.see_size(suffix, size);
                }
                Err(unfit) => {
                    self.images.fault(unfit.clone().named(member.archive(), &name), config);
                    self.keyed.fault(unfit.named(member.archive(), &name), config);
                }
            }
        } else if self.survey.wants_header(suffix)
            && let Err(reason) = self.survey.see_header(suffix, &member.head(arrays::LONGEST_HEADER)?)
        {
            self.keyed.fault(member.misfit(&reason), config);
        }
        Ok(())
    }
}

/// The first name that is there for the second time.
fn first_twice(tar: &Tar, twice: &Twice) -> Result<Option<IngestError>, IngestError> {
    let (mut seen, mut first) = (HashSet::new(), None);
    tar.look(|member| {
        if first.is_none()
            && images::is_named(&member.name)
            && twice.may_hold(&member.name)
            && !seen.insert(member.name.clone())
        {
            first = Some(member.misfit("is there twice"));
        }
        Ok(())
    })?;
    Ok(first)
}

/// An image on its way into a piece.
struct Pending {
    name: String,
    label: Option<i64>,
    bytes: Vec<u8>,
}

/// Gathers the images of an archive into pieces.
struct Gather<'s> {
    source: &'s ArchiveSource,
    tar: &'s Tar,
    images: Vec<Pending>,
    load: Load,
    /// Names of which there are two, as they come.
    seen: HashSet<String>,
}

impl<'s> Gather<'s> {
    fn take(&mut self, member: &mut Member<'_>, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        let is_image = images::is_named(&member.name);
        if let Some(error) = member.refusal(LARGEST_IMAGE) {
            return if is_image { self.fault(member, error, feed) } else { Ok(()) };
        }
        let (archive, under) = (member.archive(), self.source.tars.under.as_deref());
        match Layout::place(under, &member.name) {
            Place::Elsewhere => return Ok(()),
            Place::Unread => return self.fault(member, images::unread(archive, &member.name), feed),
            Place::Image => {}
        }
        if self.tar.twice.may_hold(&member.name) && !self.seen.insert(member.name.clone()) {
            return self.fault(member, member.misfit("is there twice"), feed);
        }
        let changed = |()| IngestError::Changed { path: archive.to_owned(), what: member.name.clone() };
        let label = self.source.labels.of(under, &member.name).map_err(changed)?;
        let name = self.tar.name_of(&member.name);
        feed.check_row(&name, member.size).map_err(Stopped::Elsewhere)?;
        let bytes = member.read(LARGEST_IMAGE)?;
        let is_full = self.load.add(self.source.pictures.weight(bytes.len() as u64));
        self.images.push(Pending { name, label, bytes });
        if is_full { self.flush(feed) } else { Ok(()) }
    }

    fn fault(
        &mut self,
        member: &Member<'_>,
        error: IngestError,
        feed: &mut Feed<'_, 's>,
    ) -> Result<(), Stopped> {
        self.flush(feed)?;
        feed.fault(&self.tar.name_of(&member.name), error).map_err(Stopped::Elsewhere)
    }

    fn flush(&mut self, feed: &mut Feed<'_, 's>) -> Result<(), Stopped> {
        self.load = Load::default();
        let images = std::mem::take(&mut self.images);
        let Some(first) = images.first() else { return Ok(()) };
        let (source, tar) = (self.source, self.tar);
        let listed = feed.piece(first.name.clone(), move |faults| source.rows(tar, images, faults));
        listed.map_err(Stopped::Elsewhere)
    }
}

impl ArchiveSource {
    fn rows(&self, tar: &Tar, images: Vec<Pending>, faults: &mut Faults) -> Result<RecordBatch, IngestError> {
        let mut rows = Rows::default();
        for Pending { name, label, bytes } in images {
            rows.add(&tar.file.path, self.pictures, name, label, bytes, faults)?;
        }
        rows.finish(&tar.file.path, self.pictures, &self.about.schema)
    }
}

impl Format for ArchiveSource {
    fn about(&self) -> &About {
        &self.about
    }

    fn pieces<'s>(&'s self, feed: &mut Feed<'_, 's>) -> Result<Vec<InputDigest>, IngestError> {
        self.tars.pieces(feed, |tar, reading, feed| {
            let (images, load, seen) = (Vec::new(), Load::default(), HashSet::new());
            let mut gather = Gather { source: self, tar, images, load, seen };
            let visited = reading.each(|member| gather.take(member, feed));
            if !matches!(visited, Err(Stopped::Elsewhere(_))) {
                gather.flush(feed)?;
            }
            visited
        })
    }
}
