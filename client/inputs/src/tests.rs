//! Remote files read as they are, with no more requests than necessary; names do not depend on the place.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path as Key;
use object_store::{
    CopyOptions, GetOptions, GetRange, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use proptest::prelude::*;
use shardd_ingest::{Content, ReadAt};
use shardd_store::stores::Service;

use super::ahead::Listing;
use super::object::Object;
use super::pattern::{Fit, Pattern};
use super::*;

/// A store that notes requests, and whether the caller waits for them.
#[derive(Debug, Default)]
struct Noted {
    store: InMemory,
    asked: Mutex<Vec<Asked>>,
}

#[derive(Clone, Debug)]
struct Asked {
    key: Key,
    range: Range<u64>,
    is_waited_for: bool,
}

impl fmt::Display for Noted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[async_trait]
impl ObjectStore for Noted {
    async fn put_opts(&self, key: &Key, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.store.put_opts(key, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        key: &Key,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(key, options).await
    }

    async fn get_opts(&self, key: &Key, options: GetOptions) -> Result<GetResult> {
        let Some(GetRange::Bounded(range)) = options.range.clone() else { panic!("asked for {options:?}") };
        let is_waited_for = thread::current().name() != Some("inputs");
        self.asked.lock().unwrap().push(Asked { key: key.clone(), range, is_waited_for });
        self.store.get_opts(key, options).await
    }

    fn delete_stream(&self, keys: BoxStream<'static, Result<Key>>) -> BoxStream<'static, Result<Key>> {
        self.store.delete_stream(keys)
    }

    fn list(&self, prefix: Option<&Key>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.store.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Key>) -> Result<ListResult> {
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Key, to: &Key, options: CopyOptions) -> Result<()> {
        self.store.copy_opts(from, to, options).await
    }
}

/// Objects far away, to be read.
struct Far {
    network: Network,
    store: Arc<Noted>,
    files: Vec<Arc<dyn Content>>,
}

impl Far {
    fn with(objects: &[(&str, Vec<u8>)]) -> Far {
        let (network, store) = (Network::default(), Arc::new(Noted::default()));
        network.start().expect("starts");
        let put = |(key, bytes): &(&str, Vec<u8>)| {
            let location = Key::from(*key);
            network.wait(store.put(&location, bytes.clone().into())).expect("memory takes it");
            let meta = network.wait(store.store.head(&location)).expect("it is there");
            Object { service: Service::S3, store: store.clone(), meta, is_of_hub: false }
        };
        let listing = Listing::new(&network, objects.iter().map(put).collect());
        let files = (0..objects.len()).map(|index| listing.content(index)).collect();
        Far { network, store, files }
    }

    fn open(&self, index: usize) -> Arc<dyn ReadAt> {
        self.files[index].open().expect("opens")
    }

    fn asked(&self) -> Vec<Asked> {
        self.store.asked.lock().unwrap().clone()
    }

    fn bytes_asked(&self) -> u64 {
        self.asked().iter().map(|asked| asked.range.end - asked.range.start).sum()
    }

    fn waits(&self) -> usize {
        self.asked().iter().filter(|asked| asked.is_waited_for).count()
    }
}

fn noise(seed: u8, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

/// Reads from `start` on, at most `step` bytes at a time, until `length` bytes are there or the file ends.
fn read(file: &dyn ReadAt, start: u64, length: usize, step: usize) -> Vec<u8> {
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; step]);
    while bytes.len() < length {
        let wanted = step.min(length - bytes.len());
        match file.read_at(&mut buffer[..wanted], start + bytes.len() as u64).expect("reads") {
            0 => break,
            read => bytes.extend_from_slice(&buffer[..read]),
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_read_in_whatever_order_is_what_is_there(
        size in 0usize..300_000,
        reads in prop::collection::vec((0u64..310_000, 1usize..200_000, 1usize..150_000), 1..8),
    ) {
        let bytes = noise(1, size);
        let far = Far::with(&[("a", bytes.clone())]);
        let file = far.open(0);
        for (start, length, step) in reads {
            let end = size.min(start as usize + length);
            let expected = bytes.get(start as usize..end).unwrap_or_default();
            prop_assert_eq!(read(&*file, start, length, step), expected);
        }
    }

    #[test]
    fn names_are_unique_and_do_not_depend_on_where_it_all_lies(
        roots in prop::collection::vec(prop::collection::vec("[ab]", 0..4), 1..6),
        moved in prop::collection::vec("[abc]", 1..3),
    ) {
        let here: Vec<Root> = roots.iter().map(|root| Root::new("file", ["x"].into_iter().chain(root.iter().map(String::as_str)))).collect();
        let there: Vec<Root> = here.iter().map(|root| {
            let steps = moved.iter().chain(&root.0[1..]).map(String::as_str);
            Root::new("s3", steps)
        }).collect();
        let names = prefixes(&here.iter().collect::<Vec<_>>());
        prop_assert_eq!(&names, &prefixes(&there.iter().collect::<Vec<_>>()));
        for (a, name) in here.iter().zip(&names) {
            for (b, other) in here.iter().zip(&names) {
                prop_assert_eq!(a == b, name == other);
                // A file below one is below the other by name as it is by place.
                prop_assert_eq!(b.0.starts_with(&a.0), other.starts_with(name.as_str()));
            }
        }
    }
}

#[test]
fn several_folders_are_told_apart_by_their_own_names_or_else_by_their_paths() {
    let named = |paths: &[&str]| {
        let roots: Vec<Root> = paths.iter().map(|path| Root::new("file", path.split('/'))).collect();
        prefixes(&roots.iter().collect::<Vec<_>>())
    };
    assert_eq!(named(&["/data/train"]), [""]);
    assert_eq!(named(&["/data/train", "/data/train"]), ["", ""]);
    assert_eq!(named(&["/data/train", "/mnt/val"]), ["train/", "val/"]);
    assert_eq!(named(&["/data/a/train", "/data/b/train"]), ["a/train/", "b/train/"]);
    assert_eq!(named(&["/data/sub/deep", "/data"]), ["sub/deep/", ""]);
    assert_eq!(named(&["/data/sub", "/data", "/more"]), ["data/sub/", "data/", "more/"]);
}

#[test]
fn a_large_file_read_in_order_is_fetched_once_and_ahead() {
    let bytes = noise(2, (40 << 20) + 12_345);
    let far = Far::with(&[("a", bytes.clone())]);
    assert!(read(&*far.open(0), 0, usize::MAX, 1 << 20) == bytes);
    assert_eq!(far.bytes_asked(), bytes.len() as u64);
    assert!(far.asked().len() <= 14, "{:?}", far.asked());
    assert_eq!(far.waits(), 1);
}

#[test]
fn a_footer_costs_one_request_and_a_look_at_the_beginning_another() {
    let bytes = noise(3, 20 << 20);
    let far = Far::with(&[("a", bytes.clone())]);
    let file = far.open(0);
    let end = bytes.len() as u64;
    assert_eq!(read(&*file, end - 8, 8, 8), bytes[bytes.len() - 8..]);
    assert_eq!(read(&*file, end - 5000, 5000, 700), bytes[bytes.len() - 5000..]);
    assert_eq!(far.asked().len(), 1);
    assert_eq!(read(&*file, 0, 512, 32), bytes[..512]);
    assert_eq!((far.asked().len(), far.bytes_asked()), (2, 128 << 10));
}

#[test]
fn small_files_are_fetched_before_they_are_asked_for_and_once_each() {
    let names: Vec<String> =
        (0..300).flat_map(|number| [format!("{number:04}.json"), format!("{number:04}.png")]).collect();
    let objects: Vec<(&str, Vec<u8>)> =
        names.iter().map(|name| (name.as_str(), noise(name.len() as u8, 3000))).collect();
    let far = Far::with(&objects);
    let images: Vec<usize> = (0..objects.len()).filter(|index| names[*index].ends_with("png")).collect();
    // Two readers, each with a half, in turns.
    let (first, second) = images.split_at(images.len() / 2);
    for index in first.iter().zip(second).flat_map(|(a, b)| [*a, *b]) {
        assert_eq!(read(&*far.open(index), 0, 3001, 3001), objects[index].1);
    }
    assert_eq!(far.asked().len(), images.len());
    assert!(far.asked().iter().all(|asked| asked.key.as_ref().ends_with("png")));
    assert!(far.waits() <= 4, "{} of them", far.waits());
}

#[test]
fn an_object_that_changed_is_an_error_and_not_a_mix() {
    let far = Far::with(&[("a", noise(4, 9 << 20))]);
    let file = far.open(0);
    assert_eq!(read(&*file, 0, 1000, 1000).len(), 1000);
    let key = Key::from("a");
    far.network.wait(far.store.put(&key, noise(5, 9 << 20).into())).expect("memory takes it");
    let error = file.read_at(&mut [0; 1000], 5 << 20).expect_err("it changed");
    assert_eq!(error.kind(), ErrorKind::StaleNetworkFileHandle);
}

#[test]
fn a_pattern_finds_on_a_disk_what_it_matches_in_a_listing() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let names =
        ["a.csv", "b.txt", "d/a.csv", "d/e/a.csv", "d/e/f/b.csv", "g/a.csv", ".h/a.csv", "__MACOSX/a.csv"];
    for name in names {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, name).expect("written");
    }
    for text in [
        "*",
        "*.csv",
        "*/*.csv",
        "**/a.csv",
        "d/**",
        "d/**/b.csv",
        "{d,g}/a.*",
        "**/e",
        "[!b]*",
        "?",
        "**",
        "**/**/a.csv",
    ] {
        let pattern = Pattern::parse(text).expect("a pattern");
        let visible = names.iter().filter(|name| !name.split('/').any(shardd_ingest::is_hidden));
        let expected: Vec<&str> = visible.copied().filter(|name| pattern.fit(name) != Fit::Nothing).collect();
        let found = local::find(&dir.path().join(text), Links::Within).expect("found");
        let found: Vec<&str> = found.files.iter().map(|file| file.name()).collect();
        let folder = Pattern::split(text).expect("wild").0;
        let expected: Vec<&str> =
            expected.iter().map(|name| name.strip_prefix(folder).unwrap_or(name)).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn what_leads_nowhere_is_refused_with_a_way_out() {
    let refused =
        |given: &str| open(&[given.into()], None, Links::Within).expect_err("nothing there").to_string();
    assert!(refused("ftp://host/mnist").contains("ftp:// is not read; give a path, a pattern"));
    assert!(refused("hf://datasets/mnist").contains("give it as hf://datasets/OWNER/NAME[@REVISION]/PATH"));
    assert!(refused("s3://").contains("give it as s3://BUCKET/FOLDER"));
    assert!(refused("/no/such/place").contains("/no/such/place: no such file"));
    assert!(refused("/no/such/*.csv").contains("/no/such/: no such file"));
    assert!(refused("/proc/self/*.csv").contains("matches no file; list the files of /proc/self/"));
    assert!(refused("https://host/folder/?key=secret").starts_with("https://host/folder/: a folder, which"));
    assert!(refused("s3://bucket/a//b").contains("one slash between them"));
    assert!(refused("/proc/self/[.csv").contains("not a pattern"));
    let missing = Refusal::of_status(404).to_string();
    assert!(missing.contains("check the URL"), "{missing}");
}

#[test]
fn a_pattern_follows_no_link_out_of_its_folder_that_no_step_names() {
    let (dir, elsewhere) = (tempfile::tempdir().expect("made"), tempfile::tempdir().expect("made"));
    fs::write(elsewhere.path().join("x.csv"), "a\n1\n").expect("written");
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("link")).expect("linked");
    let found =
        |pattern: &str, links| local::find(&dir.path().join(pattern), links).map(|found| found.files.len());
    let refused = found("**/*.csv", Links::Within).expect_err("it leads out").to_string();
    assert!(refused.contains("link: is a link that leads out of the input"), "{refused}");
    assert_eq!(found("**/*.csv", Links::Followed).expect("found"), 1);
    assert_eq!(found("l*/x.csv", Links::Within).expect("found"), 1, "as if the shell had found it");
}
