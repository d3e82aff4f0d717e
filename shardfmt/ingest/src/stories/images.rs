//! Directories and archives of images.

use super::*;

const ZOO: [(&str, u8); 4] = [("cat/1.png", 1), ("cat/2.png", 2), ("ant/a/3.png", 3), ("dog/4.png", 4)];

fn zoo(prefix: &str) -> Vec<(String, Vec<u8>)> {
    ZOO.iter().map(|(name, shade)| (format!("{prefix}{name}"), png(*shade))).collect()
}

#[test]
fn folders_are_the_labels_and_bytes_stay_as_they_are() {
    let directory = directory(&borrowed(&zoo("")));
    std::fs::write(directory.path().join("README.md"), "about").unwrap();
    std::fs::write(directory.path().join("cat/.hidden.png"), "junk").unwrap();
    let ingested = run(directory.path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.texts("path"), ["ant/a/3.png", "cat/1.png", "cat/2.png", "dog/4.png"]);
    assert_eq!(ingested.integers("label"), [0, 1, 1, 2]);
    assert_eq!(ingested.manifest.class_names().unwrap(), ["ant", "cat", "dog"]);
    assert_eq!(ingested.binaries("image"), [png(3), png(1), png(2), png(4)]);
    assert_eq!(ingested.skipped, 1);
    assert_eq!(ingested.provenance.inputs[0].name, "./ (4 files)");
    let counts = ingested.manifest.shards[0].labels.clone().unwrap();
    assert_eq!(counts, [("0", 1), ("1", 2), ("2", 1)].map(|(label, count)| (label.into(), count)).into());
}

#[test]
fn images_side_by_side_have_no_label() {
    let formats = [("a.png", ImageFormat::Png), ("b.JPG", ImageFormat::Jpeg), ("c.webp", ImageFormat::WebP)];
    let mut files: Vec<_> = formats.iter().map(|(name, format)| (*name, picture(*format, 9))).collect();
    files.push(("d.bmp", picture(ImageFormat::Bmp, 9)));
    // Many images on the web have the wrong extension; the content counts.
    files.push(("e.jpeg", png(9)));
    let ingested = run(directory(&files).path(), &sequential(), 2).unwrap();
    assert_eq!(ingested.texts("path"), ["a.png", "b.JPG", "c.webp", "d.bmp", "e.jpeg"]);
    assert!(ingested.manifest.schema.column_with_name("label").is_none());
    assert_eq!(ingested.manifest.class_names(), None);
    assert_eq!(ingested.manifest.shards[0].labels, None);
}

#[test]
fn an_archive_is_read_without_unpacking_plain_gzipped_or_joined() {
    let mut files = zoo("./train/");
    files.push(("README.md".to_owned(), b"about".to_vec()));
    files.push(("test/cat/5.png".to_owned(), png(5)));
    let plain = tar(&borrowed(&files));
    for (name, bytes) in [("zoo.tar", plain.clone()), ("zoo.tar.gz", gzip(&plain)), ("zoo.tgz", gzip(&plain))]
    {
        let (_directory, path) = one_file(name, &bytes);
        let ingested = run(&path, &under("train/"), 2).unwrap();
        let expected = ["train/cat/1.png", "train/cat/2.png", "train/ant/a/3.png", "train/dog/4.png"];
        assert_eq!(ingested.texts("path"), expected);
        assert_eq!(ingested.integers("label"), [1, 1, 0, 2]);
        assert_eq!(ingested.manifest.class_names().unwrap(), ["ant", "cat", "dog"]);
        assert_eq!(ingested.provenance.inputs[0].digest, shardfmt::digest::Digest::of(&bytes));
        assert_eq!(ingested.provenance.inputs[0].name, name);
        let all = run(&path, &sequential(), 1).unwrap();
        assert_eq!(all.manifest.class_names().unwrap(), ["test", "train"]);
        assert_eq!(all.skipped, 1);
    }
    let joined = [plain, tar(&[("test/dog/6.png", png(6))])].concat();
    let (_directory, path) = one_file("joined.tar", &joined);
    assert_eq!(run(&path, &under("test"), 2).unwrap().integers("label"), [0, 1]);
}

#[test]
fn an_image_that_cannot_be_decoded_is_named() {
    let mut cut = picture(ImageFormat::Jpeg, 7);
    cut.truncate(cut.len() / 2);
    let mut half = png(7);
    half.truncate(half.len() - 20);
    // Decoders would take this one, and show grey where the rest should be.
    let mut large = Cursor::new(Vec::new());
    let noise = |x, y| image::Rgb([(x * y) as u8, (x * 7) as u8, (y * 31) as u8]);
    RgbImage::from_fn(80, 80, noise).write_to(&mut large, ImageFormat::Jpeg).unwrap();
    let mut broken_off = large.into_inner();
    broken_off.truncate(broken_off.len() * 9 / 10);
    for bad in [half, cut, broken_off, b"<html>404</html>".to_vec(), Vec::new()] {
        let mut files = zoo("");
        files.push(("cat/bad.png".to_owned(), bad));
        let text = refusal(directory(&borrowed(&files)).path(), &sequential());
        assert!(text.contains("cat/bad.png"), "{text}");
        let (_directory, path) = one_file("zoo.tar", &tar(&borrowed(&files)));
        assert!(refusal(&path, &sequential()).contains("cat/bad.png"));
    }
}

#[test]
fn a_truncated_or_damaged_archive_is_refused() {
    let plain = tar(&borrowed(&zoo("")));
    let packed = gzip(&plain);
    let mut damaged = packed.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0xff;
    let end_of_last = plain.len() - 1024;
    let cases = [
        ("cut.tar.gz", packed[..packed.len() - 5].to_vec()),
        ("half.tar.gz", packed[..packed.len() / 2].to_vec()),
        ("damaged.tar.gz", damaged),
        ("cut.tar", plain[..plain.len() / 2].to_vec()),
        ("unended.tar", plain[..end_of_last].to_vec()),
        ("no.tar.gz", plain),
        (
            "text.tar.gz",
            gzip(b"just a text, long enough to be a header of a tar archive ".repeat(20).as_slice()),
        ),
        ("empty.tar", Vec::new()),
    ];
    for (name, bytes) in cases {
        let (_directory, path) = one_file(name, &bytes);
        if name == "no.tar.gz" {
            // Not gzipped in spite of its name: the content is clear enough.
            run(&path, &sequential(), 1).unwrap();
            continue;
        }
        let text = refusal(&path, &sequential());
        assert!(text.contains(name) && text.contains("truncated or damaged"), "{text}");
    }
}

#[test]
fn a_hostile_archive_writes_nothing_and_is_refused_by_entry() {
    let outside = directory(&[]);
    let absolute = outside.path().join("x.png");
    for name in ["../x.png", "cat/../../x.png", absolute.to_str().unwrap()] {
        let (_directory, path) = one_file("bad.tar", &tar(&[("cat/1.png", png(1)), (name, png(2))]));
        let text = refusal(&path, &sequential());
        assert!(text.contains(name) && text.contains("leaves the archive"), "{text}");
    }
    for kind in [tar::EntryType::Symlink, tar::EntryType::Link] {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar_header("cat/2.png", 0, kind);
        header.set_link_name("/etc/passwd").unwrap();
        header.set_cksum();
        builder.append(&header, io::empty()).unwrap();
        let (_directory, path) = one_file("bad.tar", &builder.into_inner().unwrap());
        assert!(refusal(&path, &sequential()).contains("is a link"));
    }
    // A size that is only claimed costs no memory.
    let mut claimed = tar_header("cat/1.png", 200 << 20, tar::EntryType::Regular).as_bytes().to_vec();
    claimed.extend(png(1));
    let (_directory, path) = one_file("bad.tar", &claimed);
    assert!(refusal(&path, &sequential()).contains("truncated"));
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn a_layout_that_could_mean_two_things_is_refused() {
    let mut files = zoo("");
    files.push(("5.png".to_owned(), png(5)));
    let text = refusal(directory(&borrowed(&files)).path(), &sequential());
    assert!(text.contains("\"5.png\"") && text.contains("under"), "{text}");
    let mut files = zoo("");
    files.push(("cat/5.gif".to_owned(), vec![1]));
    assert!(refusal(directory(&borrowed(&files)).path(), &sequential()).contains("cat/5.gif"));
}

#[test]
fn a_folder_that_is_not_there_is_answered_with_those_that_are() {
    let directory = directory(&borrowed(&zoo("")));
    assert!(refusal(directory.path(), &under("train")).contains("ant, cat, dog"));
    let (_directory, path) = one_file("zoo.tar", &tar(&borrowed(&zoo(""))));
    assert!(refusal(&path, &under("train")).contains("ant, cat, dog"));
    let (_directory, path) = one_file("none.tar", &tar(&[("README.md", vec![1])]));
    assert!(refusal(&path, &sequential()).contains("no samples"));
}

#[test]
fn links_in_a_directory_are_followed_and_cycles_end() {
    let directory = directory(&borrowed(&zoo("")));
    std::os::unix::fs::symlink(directory.path().join("cat"), directory.path().join("lion")).unwrap();
    let ingested = run(directory.path(), &sequential(), 1).unwrap();
    assert_eq!(ingested.manifest.class_names().unwrap(), ["ant", "cat", "dog", "lion"]);
    std::os::unix::fs::symlink(directory.path(), directory.path().join("dog/up")).unwrap();
    assert!(refusal(directory.path(), &sequential()).contains("link"));
}
