use super::*;

/// By Python's `datetime.strftime` on Linux.
#[test]
fn formats_are_those_of_python() {
    let all = "%a %A %b %B %d %e %H %I %j %m %M %p %S %U %V %W %w %u %y %Y %G %g %C %D %F %R %T %h %% %-d %-m %-j %-H %f %c";
    for (now, expected) in [
        (
            "2026-07-26T09:05:07",
            "Sun Sunday Jul July 26 26 09 09 207 07 05 AM 07 30 30 29 0 7 26 2026 2026 26 20 07/26/26 2026-07-26 09:05 \
             09:05:07 Jul % 26 7 207 9 000000 Sun Jul 26 09:05:07 2026",
        ),
        (
            "2021-01-03 00:00:00",
            "Sun Sunday Jan January 03  3 00 12 003 01 00 AM 00 01 53 00 0 7 21 2021 2020 20 20 01/03/21 2021-01-03 00:00 \
             00:00:00 Jan % 3 1 3 0 000000 Sun Jan  3 00:00:00 2021",
        ),
        (
            "2024-12-30T23:59:59",
            "Mon Monday Dec December 30 30 23 11 365 12 59 PM 59 52 01 53 1 1 24 2024 2025 25 20 12/30/24 2024-12-30 23:59 \
             23:59:59 Dec % 30 12 365 23 000000 Mon Dec 30 23:59:59 2024",
        ),
    ] {
        assert_eq!(now.parse::<Now>().expect("a time").format(all), Ok(expected.to_owned()), "{now}");
    }
}

#[test]
fn a_directive_or_a_date_that_does_not_exist_is_refused() {
    let now: Now = "2024-02-29".parse().expect("a leap day");
    assert_eq!(now.to_string(), "2024-02-29T00:00:00");
    assert_eq!(now.format("%Q"), Err("%Q".to_owned()));
    assert_eq!(now.format("%-"), Err("%-".to_owned()));
    for text in [
        "",
        "2023-02-29",
        "0000-01-01",
        "2024-13-01",
        "2024-01-01T24:00:00",
        "2024-01-01-01",
        "2024-01",
        "+024-01-01",
    ] {
        assert_eq!(text.parse::<Now>(), Err(DateError(text.to_owned())));
    }
}
