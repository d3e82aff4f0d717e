//! Archives of images: how they are packed, how many there are, and what can be wrong with them.

use std::sync::Arc;

use proptest::prelude::*;

use super::*;

fn zoo() -> Vec<(&'static str, Vec<u8>)> {
    vec![("cat/1.png", png(1)), ("ant/2.png", png(2)), ("cat/3.png", png(3)), ("dog/4.png", png(4))]
}

/// The members and their ends, but no end mark.
fn without_end(archive: &[u8]) -> &[u8] {
    &archive[..archive.len() - 1024]
}

#[test]
fn it_does_not_matter_how_an_archive_is_packed() {
    let plain = tar(&zoo());
    let (left, right) = plain.split_at(plain.len() / 2);
    let packed = [
        ("zoo.tar", plain.clone()),
        ("zoo.tar.gz", gzip(&plain)),
        ("two.tgz", [gzip(left), gzip(right)].concat()),
        ("zoo.tar.zst", zstd(&plain)),
        ("two.tzst", [zstd(left), zstd(right)].concat()),
        // Its name counts for nothing.
        ("zoo.bin", zstd(&plain)),
        ("joined.tar.zst", zstd(&[tar(&zoo()[..1]), tar(&zoo()[1..])].concat())),
    ];
    for (name, bytes) in packed {
        let (_directory, path) = one_file(name, &bytes);
        let ingested = run(&path, &sequential(), 2).unwrap();
        assert_eq!(ingested.texts("path"), ["cat/1.png", "ant/2.png", "cat/3.png", "dog/4.png"], "{name}");
        assert_eq!(ingested.integers("label"), [1, 0, 1, 2]);
        assert_eq!(ingested.binaries("image"), [1, 2, 3, 4].map(png));
        let input = &ingested.provenance.inputs[0];
        assert_eq!((input.name.as_str(), input.digest), (name, shardfmt::Digest::of(&bytes)));
    }
}

#[test]
fn archives_of_a_directory_are_one_dataset() {
    let files = [
        ("b/two.tar.zst", zstd(&tar(&[("dog/1.png", png(3)), ("ant/1.png", png(4))]))),
        ("a/one.tar", tar(&[("cat/1.png", png(1)), ("dog/2.png", png(2))])),
        ("README.md", b"about".to_vec()),
    ];
    let directory = directory(&files);
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    let paths =
        ["a/one.tar/cat/1.png", "a/one.tar/dog/2.png", "b/two.tar.zst/dog/1.png", "b/two.tar.zst/ant/1.png"];
    assert_eq!(ingested.texts("path"), paths);
    assert_eq!(ingested.manifest.class_names().unwrap(), ["ant", "cat", "dog"]);
    assert_eq!(ingested.integers("label"), [1, 2, 2, 0]);
    assert_eq!(ingested.skipped, 1);
    let inputs: Vec<&str> = ingested.provenance.inputs.iter().map(|input| input.name.as_str()).collect();
    assert_eq!(inputs, ["a/one.tar", "b/two.tar.zst"]);
    assert_eq!(run(directory.path(), &under("b"), 1).unwrap().integers("label"), [1, 0]);
}

#[test]
fn what_is_wrong_with_a_member_is_said_or_skipped() {
    let mut builder = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind: tar::EntryType, bytes: &[u8]| {
        let mut header = tar_header(name, bytes.len() as u64, kind);
        header.set_link_name("cat/1.png").unwrap();
        header.set_cksum();
        builder.append(&header, bytes).unwrap();
    };
    let file = tar::EntryType::Regular;
    add("cat/1.png", file, &png(1));
    let faults = [
        ("cat/1.png", file, png(2), "is there twice"),
        ("../2.png", file, png(2), "leaves the archive"),
        ("cat/link.png", tar::EntryType::Symlink, Vec::new(), "is a link"),
        ("cat/hard.png", tar::EntryType::Link, Vec::new(), "is a link"),
        ("cat/pipe.png", tar::EntryType::Fifo, Vec::new(), "is no file"),
        ("cat/anim.gif", file, vec![1], "convert it"),
        ("cat/bad.png", file, b"no image".to_vec(), "cannot be decoded"),
    ];
    for (name, kind, bytes, _) in &faults {
        add(name, *kind, bytes);
    }
    add("notes", tar::EntryType::Symlink, &[]);
    add("cat/5.png", file, &png(5));
    let (_directory, path) = one_file("zoo.tar", &builder.into_inner().unwrap());
    let ingested = run(&path, &skipping(), 2).unwrap();
    assert_eq!(ingested.texts("path"), ["cat/1.png", "cat/5.png"]);
    assert_eq!(ingested.binaries("image"), [png(1), png(5)]);
    assert_eq!(ingested.left_out(), faults.clone().map(|(name, ..)| name));
    for (skipped, (.., reason)) in ingested.provenance.skipped.first.iter().zip(&faults) {
        assert!(skipped.reason.contains(reason), "{skipped:?}");
    }
    for (name, kind, bytes, reason) in faults {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append(&tar_header("cat/1.png", png(1).len() as u64, file), png(1).as_slice()).unwrap();
        builder.append(&tar_header(name, bytes.len() as u64, kind), bytes.as_slice()).unwrap();
        let (_directory, path) = one_file("zoo.tar", &builder.into_inner().unwrap());
        let text = refusal(&path, &sequential());
        assert!(text.contains(name) && text.contains(reason), "{text}");
    }
}

#[test]
fn a_damaged_archive_names_the_last_good_member_and_is_read_up_to_it() {
    let plain = tar(&zoo());
    let third = plain.windows(9).position(|name| name == b"cat/3.png").unwrap();
    let mut bad_header = plain.clone();
    bad_header[third] ^= 1;
    let cases = [
        (
            "within.tar",
            plain[..third + 600].to_vec(),
            "ends too early within \\\"cat/3.png\\\", after \\\"ant/2.png\\\"",
            2,
        ),
        ("header.tar", bad_header, "checksum", 2),
        ("unended.tar", without_end(&plain).to_vec(), "no end mark, after \\\"dog/4.png\\\"", 4),
        ("cut.tar.zst", zstd(&plain)[..zstd(&plain).len() - 3].to_vec(), "ends too early", 4),
    ];
    for (name, bytes, reason, good) in cases {
        let (_directory, path) = one_file(name, &bytes);
        let text = format!("{:?}", refusal(&path, &sequential()));
        assert!(text.contains(reason) && text.contains("truncated or damaged"), "{text}");
        let both = directory(&[(name, bytes), ("zoo.tar", tar(&[("dog/9.png", png(9))]))]);
        let ingested = run(both.path(), &skipping(), 2).unwrap();
        // The end of the compressed text is lost with the block that it lies in.
        let found = ingested.texts("path").len();
        assert!(found == good + 1 || (name.ends_with("zst") && found <= good + 1), "{name}: {found}");
        assert_eq!(ingested.left_out(), [name]);
    }
}

#[test]
fn zeros_at_the_end_of_a_member_are_no_end_mark() {
    let members = [("1.bin", vec![1]), ("2.bin", vec![0; 2048])];
    let plain = tar(&members);
    for kept in [0, 511] {
        let cut = &plain[..plain.len() - 1024 + kept];
        for (name, bytes) in
            [("cut.tar", cut.to_vec()), ("cut.tar.gz", gzip(cut)), ("cut.tar.zst", zstd(cut))]
        {
            let (_directory, path) = one_file(name, &bytes);
            let config = IngestConfig { format: Some(Kind::WebDataset), ..sequential() };
            let text = refusal(&path, &config);
            assert!(text.contains(name) && text.contains("truncated or damaged"), "{text}");
            let skipped = run(&path, &IngestConfig { format: config.format, ..skipping() }, 1).unwrap();
            assert_eq!((skipped.left_out(), skipped.texts("key")[0].as_str()), (vec![name.to_owned()], "1"));
        }
    }
    // One block of zeros is enough, and so is any number.
    for kept in [512, 4096] {
        let mut whole = plain[..plain.len() - 1024].to_vec();
        whole.resize(whole.len() + kept, 0);
        let (_directory, path) = one_file("whole.tar", &whole);
        let config = IngestConfig { format: Some(Kind::WebDataset), ..sequential() };
        assert_eq!(run(&path, &config, 1).unwrap().texts("key"), ["1", "2"]);
    }
}

#[test]
fn archives_need_no_endings_where_one_says_what_they_are() {
    let files = [("part-0", tar(&zoo()[..2])), ("part-1", zstd(&tar(&zoo()[2..])))];
    let directory = directory(&files);
    let config = IngestConfig { format: Some(Kind::Archive), ..sequential() };
    let ingested = run(directory.path(), &config, 2).unwrap();
    let paths = ["part-0/cat/1.png", "part-0/ant/2.png", "part-1/cat/3.png", "part-1/dog/4.png"];
    assert_eq!(ingested.texts("path"), paths);
}

#[test]
fn long_names_are_read_and_endless_ones_are_not() {
    let long = format!("cat/{}.png", "very ".repeat(60));
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar_header("", png(1).len() as u64, tar::EntryType::Regular);
    builder.append_data(&mut header, &long, png(1).as_slice()).unwrap();
    let pax = format!("cat/{}.png", "other ".repeat(60));
    builder.append_pax_extensions([("path", pax.as_bytes())]).unwrap();
    builder
        .append(&tar_header("x", png(2).len() as u64, tar::EntryType::Regular), png(2).as_slice())
        .unwrap();
    let (_directory, path) = one_file("zoo.tar", &builder.into_inner().unwrap());
    assert_eq!(run(&path, &sequential(), 1).unwrap().texts("path"), [long, pax]);
    for kind in [tar::EntryType::GNULongName, tar::EntryType::XHeader] {
        let mut builder = tar::Builder::new(Vec::new());
        let endless = vec![b'a'; 2 << 20];
        builder.append(&tar_header("cat/1.png", endless.len() as u64, kind), endless.as_slice()).unwrap();
        let (_directory, path) = one_file("zoo.tar", &builder.into_inner().unwrap());
        assert!(refusal(&path, &sequential()).contains("too long"));
    }
    let mut builder = tar::Builder::new(Vec::new());
    builder.append_pax_extensions([("GNU.sparse.major", b"1".as_slice())]).unwrap();
    builder.append(&tar_header("cat/1.png", 0, tar::EntryType::Regular), io::empty()).unwrap();
    let (_directory, path) = one_file("zoo.tar", &builder.into_inner().unwrap());
    assert!(refusal(&path, &sequential()).contains("sparse"));
}

/// A file that exists in part: a beginning, and zeros up to its length.
#[derive(Debug)]
struct Sparse {
    beginning: Vec<u8>,
    bytes: u64,
    is_near: bool,
    read: AtomicU64,
}

impl Content for Arc<Sparse> {
    fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(Arc::new(Reading(self.clone())))
    }

    fn is_near(&self) -> bool {
        self.is_near
    }
}

struct Reading(Arc<Sparse>);

impl ReadAt for Reading {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let most = self.0.bytes.saturating_sub(offset).min(buffer.len() as u64) as usize;
        let buffer = &mut buffer[..most];
        let rest = self.0.beginning.get(offset as usize..).unwrap_or_default();
        let length = rest.len().min(most);
        buffer[..length].copy_from_slice(&rest[..length]);
        buffer[length..].fill(0);
        self.0.read.fetch_add(most as u64, Ordering::SeqCst);
        Ok(most)
    }
}

fn sparse(name: &str, beginning: Vec<u8>, bytes: u64, is_near: bool) -> (Arc<Sparse>, Inputs) {
    let content = Arc::new(Sparse { beginning, bytes, is_near, read: AtomicU64::new(0) });
    let file = InputFile::new(name, name, bytes, "", Arc::new(content.clone()));
    (content, Inputs::of_files(name, vec![file], true, None).unwrap())
}

#[test]
fn a_member_of_2_gb_is_refused_by_its_name_before_it_is_read() {
    for (format, name) in [(None, "cat/1.png"), (Some(Kind::WebDataset), "1.bin")] {
        let header = tar_header(name, 2 << 30, tar::EntryType::Regular).as_bytes().to_vec();
        let (content, inputs) = sparse("zoo.tar", header, (2 << 30) + 2048, true);
        let config = IngestConfig { format, ..sequential() };
        let text = Source::new(inputs, &config).unwrap_err().to_string();
        assert!(text.contains(name) && text.contains("2147483648 bytes"), "{text}");
        assert!(content.read.load(Ordering::SeqCst) < 1 << 20, "read it all the same");
    }
}

#[test]
fn what_lies_far_away_is_fetched_once() {
    let archive = tar(&zoo());
    let bytes = archive.len() as u64;
    let (content, inputs) = sparse("zoo.tar", archive, bytes, false);
    let ingested = run_source(Source::new(inputs, &sequential()).unwrap(), &sequential(), 2).unwrap();
    assert_eq!(ingested.integers("label"), [1, 0, 1, 2]);
    // Once, and a look at its beginning.
    let read = content.read.load(Ordering::SeqCst);
    assert!(read <= bytes + 1024, "{read} of {bytes}");
}

#[test]
fn an_error_does_not_wait_for_the_rest_of_the_archive() {
    // Images that are none, each of them enough for a piece; and a long member after them, that no one needs to read.
    let mut archive = tar::Builder::new(Vec::new());
    for name in ["1.png", "2.png", "3.png", "4.png", "5.png", "6.png"] {
        let junk = vec![1; 4 << 20];
        archive
            .append(&tar_header(name, junk.len() as u64, tar::EntryType::Regular), junk.as_slice())
            .unwrap();
    }
    let rest = 256 << 20;
    archive.get_mut().extend_from_slice(tar_header("notes", rest, tar::EntryType::Regular).as_bytes());
    let beginning = std::mem::take(archive.get_mut());
    let junk = beginning.len() as u64;
    let (content, inputs) = sparse("zoo.tar", beginning, junk + rest + 1024, true);
    let source = Source::new(inputs, &sequential()).unwrap();
    let failed = run_source(source, &sequential(), 1).err().unwrap();
    assert!(matches!(failed, IngestError::Image { .. }), "{failed}");
    let read = content.read.load(Ordering::SeqCst);
    assert!(read < junk + rest / 2, "{read} bytes were read");
}

/// Compressed as much as possible.
fn best(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn texts_that_unpack_to_next_to_nothing_but_zeros_are_refused() {
    let csv = b"a,b\n".repeat(2 << 20);
    let lines = b"{\"a\": 1}\n".repeat(1 << 20);
    for (name, text) in [("bomb.csv", &csv), ("bomb.jsonl", &lines), ("bomb.txt", &lines)] {
        for bytes in [::zstd::encode_all(text.as_slice(), 19).unwrap(), best(text)] {
            let (_directory, path) = one_file(name, &bytes);
            let text = refusal(&path, &sequential());
            assert!(text.contains(name) && text.contains("unpacks from"), "{text}");
        }
    }
}

#[test]
fn what_unpacks_to_next_to_nothing_but_zeros_is_refused() {
    let mut bomb = tar(&zoo());
    bomb.resize(8 << 20, 0);
    for (name, bytes) in [("bomb.tar.gz", best(&bomb)), ("bomb.tar.zst", zstd(&bomb))] {
        let (_directory, path) = one_file(name, &bytes);
        let text = refusal(&path, &sequential());
        assert!(text.contains(name) && text.contains("unpacks from"), "{text}");
        let both = directory(&[(name, bytes), ("zoo.tar", tar(&zoo()))]);
        let ingested = run(both.path(), &skipping(), 1).unwrap();
        assert_eq!((ingested.manifest.sample_count(), ingested.left_out()), (4, vec![name.to_owned()]));
    }
}

#[test]
fn a_system_that_fails_is_no_damage_to_be_skipped() {
    #[derive(Debug)]
    struct Failing(Vec<u8>);
    impl Content for Failing {
        fn open(&self) -> io::Result<Arc<dyn ReadAt>> {
            Ok(Arc::new(FailingAt(self.0.clone())))
        }

        fn is_near(&self) -> bool {
            true
        }
    }
    struct FailingAt(Vec<u8>);
    impl ReadAt for FailingAt {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            let most = self.0.len() / 2;
            let rest = self.0[..most].get(offset as usize..).filter(|rest| !rest.is_empty());
            let rest = rest.ok_or_else(|| io::Error::other("the network is gone"))?;
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        }
    }
    for bytes in [tar(&zoo()), gzip(&tar(&zoo()))] {
        let (length, content) = (bytes.len() as u64, Failing(bytes));
        let file = InputFile::new("zoo.tar", "zoo.tar", length, "", Arc::new(content));
        let inputs = Inputs::of_files("zoo.tar", vec![file], true, None).unwrap();
        let failed = Source::new(inputs, &skipping())
            .and_then(|source| run_source(source, &skipping(), 1).map(|_| ()));
        assert!(matches!(failed, Err(IngestError::Read { .. })), "{failed:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_damaged_archive_gives_an_error_or_fewer_rows(
        packing in 0..3u8,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
        is_skipping: bool,
        format in prop::sample::select(vec![None, Some(Kind::WebDataset), Some(Kind::Archive)]),
    ) {
        let plain = tar(&[("cat/1.png", png(1)), ("cat/1.cls", b"7".to_vec()), ("dog/2.png", png(2)), ("dog/2.cls", b"8".to_vec())]);
        let mut bytes = match packing {
            0 => plain,
            1 => gzip(&plain),
            _ => zstd(&plain),
        };
        change(&mut bytes, &changes);
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let config = IngestConfig { format, ..if is_skipping { skipping() } else { sequential() } };
        let ingested = Source::new(Inputs::in_memory("zoo.tar", bytes), &config)
            .and_then(|source| run_source(source, &config, 1));
        prop_assert!(ingested.map_or(true, |ingested| ingested.manifest.sample_count() <= 4));
    }
}
