//! Rows that memory does not allow for.

use super::*;

fn with_memory(path: &Path, memory: ByteSize, config: &IngestConfig) -> Result<crate::Ingested, IngestError> {
    let resources = Resources { memory, ..Resources::threads(1) };
    let inputs = Inputs::local(path, None, Links::Within)?.within(&resources);
    ingest(Source::new(inputs, config)?, config, &resources, &Kept::default(), &Counted::default())
}

#[test]
fn a_row_of_more_than_a_quarter_of_memory_is_refused_and_never_left_out() {
    let least = Resources::LEAST_MEMORY;
    let (_directory, text) = one_file("long.txt", &b"a line\n".repeat(3 << 20));
    let (images, image) = one_file("1.png", &[]);
    File::options().write(true).open(&image).unwrap().set_len(17 << 20).unwrap();
    for (path, name) in [(text.as_path(), "long.txt"), (images.path(), "1.png has 17.0 MiB")] {
        // The same input with more memory is another version if it is left out.
        for config in [sequential(), skipping()] {
            let refused = with_memory(path, least, &config).expect_err("it does not fit").to_string();
            assert!(refused.contains("`memory`") && refused.contains(name), "{refused}");
            assert!(refused.contains("more than 64.0 MiB; allow for more"), "{refused}");
        }
    }
    let more = ByteSize(2 * least.0);
    assert_eq!(with_memory(&text, more, &sequential()).unwrap().manifest.sample_count(), 1);
    let decoded = with_memory(images.path(), more, &sequential()).expect_err("zeros are no image");
    assert!(matches!(decoded, IngestError::Image { .. }), "{decoded}");
}

#[test]
fn a_line_that_memory_does_not_allow_for_is_refused_before_it_is_read_to_its_end() {
    let long = "x".repeat(40 << 20);
    let rows = [
        ("long.csv", format!("id,text\n1,short\n2,{long}\n")),
        ("long.libsvm", format!("1 1:1\n\n1 1:{long}\n")),
    ];
    for (name, text) in rows {
        let (_directory, path) = one_file(name, text.as_bytes());
        for config in [sequential(), skipping()] {
            let refused =
                with_memory(&path, Resources::LEAST_MEMORY, &config).expect_err("too long").to_string();
            let expected = format!("{name}, line 3 has more than 16.0 MiB, and takes up to 4 times that");
            assert!(refused.contains(&expected), "{refused}");
        }
    }
    // A document of its own line, and one that is a file.
    let (_directory, path) = one_file("long.txt", format!("short\n{long}\n").as_bytes());
    for (documents, place) in
        [(Documents::Line, "long.txt, line 2 has more than"), (Documents::File, "long.txt, line ")]
    {
        let config = IngestConfig { documents, ..sequential() };
        let refused = with_memory(&path, Resources::LEAST_MEMORY, &config).expect_err("too long").to_string();
        assert!(refused.contains(place) && refused.contains("more than 64.0 MiB"), "{refused}");
    }
}
