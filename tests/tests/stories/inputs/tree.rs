//! Files of each kind, to be ingested from here and from there.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use flate2::Compression;
use flate2::write::GzEncoder;
use image::RgbImage;
use parquet::arrow::ArrowWriter;
use tempfile::TempDir;

/// The inputs: paths in the tree, and options.
pub(crate) const KINDS: &[&[&str]] = &[
    &["digits.parquet"],
    &["large.parquet"],
    &["tables"],
    &["tables/*.parquet"],
    &["tables/a.parquet", "digits.parquet"],
    &["large.csv"],
    &["images"],
    &["images/", "--under", "train"],
    &["images/train", "images/test"],
    &["images/**/[0-4].png"],
    &["images.tar.gz"],
    &["images.tar.gz", "--under", "test"],
];

/// How many images there are.
pub(crate) const IMAGES: usize = 2 * 2 * EACH;
const EACH: usize = 40;

/// The arguments that name files of a tree that lies at `root`.
pub(crate) fn at(root: &str, given: &[&str]) -> Vec<String> {
    let options = given.iter().position(|argument| argument.starts_with("--")).unwrap_or(given.len());
    let (paths, options) = given.split_at(options);
    let paths = paths.iter().map(|path| format!("{root}/{path}"));
    paths.chain(options.iter().map(|option| option.to_string())).collect()
}

pub(crate) struct Tree(TempDir);

impl Tree {
    pub(crate) fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().expect("a temporary directory can be made"));
        let digits = |part: &str| {
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("../client/data/digits/{part}.parquet"))
        };
        for (part, name) in [
            ("train", "digits.parquet"),
            ("train", "tables/a.parquet"),
            ("test", "tables/b.parquet"),
            ("test", "tables/deep/c.parquet"),
        ] {
            fs::copy(digits(part), tree.file(name)).expect("copied");
        }
        fs::write(tree.file("tables/README.md"), "about").expect("written");
        fs::write(tree.file("tables/.hidden.parquet"), "not for anyone").expect("written");
        fs::write(tree.file("empty.csv"), "").expect("written");
        tree.write_images();
        tree.write_tables();
        tree
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    /// The arguments that name it here.
    pub(crate) fn here(&self, given: &[&str]) -> Vec<String> {
        at(&self.path().display().to_string(), given)
    }

    fn file(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        path
    }

    fn write_images(&self) {
        let archive = File::create(self.file("images.tar.gz")).expect("made");
        let mut archive = tar::Builder::new(GzEncoder::new(archive, Compression::fast()));
        for part in ["test", "train"] {
            for (class, name) in ["cat", "dog"].into_iter().enumerate() {
                for number in 0..EACH {
                    let pixel =
                        |x: u32, y: u32| image::Rgb([x as u8 * 9, y as u8 * 7, (number + class) as u8]);
                    let path = self.file(&format!("images/{part}/{name}/{number}.png"));
                    RgbImage::from_fn(16, 16, pixel).save(&path).expect("written");
                    archive
                        .append_path_with_name(&path, format!("{part}/{name}/{number}.png"))
                        .expect("added");
                }
            }
        }
        archive.into_inner().expect("ended").finish().expect("ended");
    }

    /// Some MiB each, so that they are fetched in several parts.
    fn write_tables(&self) {
        let mut csv = File::create(self.file("large.csv")).expect("made");
        let mut text = String::from("number,word\n");
        let mut numbers = Vec::new();
        for row in 0..300_000u64 {
            let number = row.wrapping_mul(0x9e37_79b9_7f4a_7c15) as i64;
            numbers.push(number);
            text += &format!("{number},w{}\n", row % 97);
        }
        csv.write_all(text.as_bytes()).expect("written");
        let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
        let more = numbers.clone();
        let batch =
            RecordBatch::try_from_iter([("number", numbers), ("again", more)]).expect("equal lengths");
        let file = File::create(self.file("large.parquet")).expect("made");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).expect("a writer");
        writer.write(&batch).expect("written");
        writer.close().expect("written");
    }
}
