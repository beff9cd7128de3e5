//! Dates of builds as RFC 3339 text. The build script compiles this file too, so it uses only the standard
//! library.

/// Formats seconds since 1970 as `YYYY-MM-DDThh:mm:ssZ`.
pub(crate) fn format(seconds: u64) -> String {
    let (mut days, second) = (seconds / 86_400, seconds % 86_400);
    let mut year = 1970;
    while days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    while days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{:02}Z", days + 1, second % 60)
}

fn is_leap_year(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_of_year(year: u64) -> u64 {
    if is_leap_year(year) { 366 } else { 365 }
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap_year(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::format;

    #[test]
    fn build_dates_equal_those_of_the_calendar_library() {
        for seconds in
            [0, 951_782_399, 951_782_400, 1_709_251_199, 1_763_841_600, 4_102_444_800, 4_107_542_400]
        {
            let expected = jiff::Timestamp::from_second(i64::try_from(seconds).unwrap()).unwrap();
            assert_eq!(format(seconds), expected.to_string());
        }
    }
}
