//! What lies in folders among the files: pipes, links to elsewhere, and data for other programs.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::Command;

use super::*;

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("there is mkfifo").success());
}

fn images() -> Vec<(&'static str, Vec<u8>)> {
    vec![("cat/1.png", png(1)), ("dog/1.png", png(2))]
}

#[test]
fn what_is_no_file_is_named_and_never_waited_for() {
    let folder = directory(&images());
    let (pipe, socket) = (folder.path().join("cat/2.png"), folder.path().join("dog/2.png"));
    fifo(&pipe);
    let text = refusal(folder.path(), &sequential());
    assert!(text.contains("cat/2.png: is a named pipe, not a file"), "{text}");
    let _listener = UnixListener::bind(&socket).expect("a socket");
    let left = run(folder.path(), &skipping(), 1).unwrap();
    assert_eq!(
        (left.manifest.sample_count(), left.left_out()),
        (2, vec!["cat/2.png".into(), "dog/2.png".into()])
    );
    assert!(
        left.provenance.skipped.first[1].reason.contains("is a socket"),
        "{:?}",
        left.provenance.skipped.first
    );
    // Given by itself there is nothing to leave out.
    for (config, path, kind) in [(sequential(), &pipe, "a named pipe"), (skipping(), &socket, "a socket")] {
        let text = refusal(path, &config);
        assert!(text.contains(&format!("is {kind}, not a file; write its content to a file")), "{text}");
    }
    let config = IngestConfig { tokenizer: Some(pipe), ..sequential() };
    let (_directory, path) = one_file("a.txt", b"text");
    assert!(refusal(&path, &config).contains("is a named pipe"));
}

#[test]
fn links_out_of_a_folder_are_followed_only_when_asked() {
    let (folder, elsewhere) =
        (directory(&images()), directory(&[("secret.png", png(3)), ("more/4.png", png(4))]));
    let link = |target: &str, name: &str| {
        symlink(elsewhere.path().join(target), folder.path().join(name)).expect("a link");
    };
    // A link within is as good as the file.
    symlink(folder.path().join("cat/1.png"), folder.path().join("dog/again.png")).expect("a link");
    assert_eq!(run(folder.path(), &sequential(), 1).unwrap().manifest.sample_count(), 3);
    link("secret.png", "cat/secret.png");
    link("more", "more");
    let text = refusal(folder.path(), &sequential());
    let target = elsewhere.path().canonicalize().expect("there").join("secret.png");
    let words =
        format!("cat/secret.png: is a link that leads out of the input, to {}; copy", target.display());
    assert!(text.contains(&words) && text.contains("`follow_symlinks`"), "{text}");
    let left = run(folder.path(), &skipping(), 1).unwrap();
    assert_eq!(
        (left.manifest.sample_count(), left.left_out()),
        (3, vec!["cat/secret.png".into(), "more".into()])
    );
    let text = refusal(folder.path(), &under("more"));
    assert!(text.contains("more: is a link that leads out"), "{text}");
    let inputs = Inputs::local(folder.path(), None, Links::Followed).unwrap();
    let source = Source::new(inputs, &sequential()).unwrap();
    assert_eq!(run_source(source, &sequential(), 1).unwrap().manifest.sample_count(), 5);
    // A folder that is given as a link is where the link leads.
    let given = folder.path().join("given");
    symlink(elsewhere.path(), &given).expect("a link");
    assert_eq!(run(&given.join("more"), &sequential(), 1).unwrap().manifest.sample_count(), 1);
}

#[test]
fn data_for_libraries_of_python_is_named_with_the_function_that_takes_it() {
    let bytes = || b"\x01\x02\x03".to_vec();
    let lance = [("_versions/1.manifest", bytes()), ("data/a.lance", bytes()), ("readme.txt", bytes())];
    let zarr = [("pbmc.zarr/zarr.json", bytes()), ("pbmc.zarr/X/c/0/0", bytes())];
    let folders = [directory(&lance), directory(&[("b/cells.h5ad", bytes())]), directory(&zarr)];
    let (_file, alone) = one_file("Cells.H5AD", &bytes());
    let cases = [
        (folders[0].path().to_owned(), "is Lance", "`lance.dataset(PATH)` to `shardd.from_arrow`"),
        (folders[0].path().join("data/a.lance"), "is Lance", "`shardd.from_arrow`"),
        (folders[1].path().to_owned(), "is AnnData", "`shardd.from_anndata`"),
        (alone, "is AnnData", "`shardd.from_anndata`"),
        (folders[2].path().to_owned(), "is Zarr", "`shardd.from_iter`"),
        (folders[2].path().join("pbmc.zarr"), "is Zarr", "`shardd.from_anndata`"),
    ];
    for (path, what, way_out) in cases {
        let text = refusal(&path, &sequential());
        assert!(text.contains(what) && text.contains(way_out), "{text}");
    }
    // Beside files of a kind that is read, they are passed over as any other file.
    let beside = directory(&[("a.csv", b"n\n1\n".to_vec()), ("cells.h5ad", bytes())]);
    assert_eq!(run(beside.path(), &sequential(), 1).unwrap().manifest.sample_count(), 1);
}
