//! What a screen shows of what was printed: sentences of small screens.

use super::*;

const SIZE: Size = Size { rows: 5, cols: 20 };

/// A terminal of five rows and twenty columns that was fed.
fn played(output: &str) -> Picture {
    let mut screen = Screen::new(SIZE, false);
    screen.feed(output.as_bytes());
    screen.picture()
}

/// The rows up to the last that has something.
fn rows(output: &str) -> Vec<String> {
    let mut rows = played(output).rows;
    assert_eq!(rows.len(), usize::from(SIZE.rows));
    while rows.last().is_some_and(String::is_empty) {
        rows.pop();
    }
    rows
}

#[test]
fn what_an_xterm_knows_is_shown_as_it_is_meant() {
    let cases: &[(&str, &[&str])] = &[
        ("one\r\ntwo", &["one", "two"]),
        ("\x1b(0lqqk\x1b(B\r\n\x1b)0\x0ex\x0fx", &["┌──┐", "│x"]),
        ("\x1b(0q\x1b7\x1b(Bq\x1b8\x1b[Cq", &["─q─"]),
        ("-\x1b[5b|", &["------|"]),
        ("-\x1b[999b", &["--------------------"]),
        ("abc\r\x1b[4hX\x1b[4lY", &["XYbc"]),
        ("abc\r\x1b[4h漢", &["漢abc"]),
        ("\x1b[?7l0123456789012345678901\x1b[?7h", &["01234567890123456781"]),
        ("a\tb\r\n\x1b[3g\x1b[5G\x1bH\r\tc\x1b[Zd", &["a       b", "    d"]),
        ("\x1b[2Ia\x1b[2Zb", &["        b       a"]),
        ("a\x1bDb\x1bEc", &["a", " b", "c"]),
        ("ab\x1b[s\x1b[3;3Hc\x1b[ud", &["abd", "", "  c"]),
        ("a\x1b[3ab\x1b[ec", &["a   b", "     c"]),
        ("\x1b#8", &["EEEEEEEEEEEEEEEEEEEE"; 5]),
        ("\x1b[2;4r\x1b[2Ha\r\nb\r\nc\r\nd", &["", "b", "c", "d"]),
        ("\x1b[2;4r\x1b[?6hx\x1b[2Hy", &["", "x", "y"]),
        ("\x1b[2;4r\x1b[?6h\x1b[!p\x1b[Hz", &["z"]),
        ("abcdef\x1b[3G\x1b[2X", &["ab  ef"]),
        ("漢字漢字\x1b[1;2Hx\x1b[1;5Hy", &[" x字y 字"]),
        ("e\u{301}x 漢字x 👍x", &["e\u{301}x 漢字x 👍x"]),
        ("\x1b]0;t\x07a\x1bP1;2|data\x1b\\b\x1b_x\x1b\\c", &["abc"]),
        ("\x1b[>1ua\x1b[?ub\x1b[=1uc", &["abc"]),
        ("\u{9b}5Ca\x7fb", &["5Cab"]),
    ];
    for (output, shown) in cases {
        assert_eq!(rows(output), *shown, "{output:?}");
    }
}

#[test]
fn bytes_that_are_no_text_take_a_column_each() {
    let mut screen = Screen::new(SIZE, false);
    screen.feed(b"a\xff\xfeb");
    let picture = screen.picture();
    assert_eq!((picture.rows[0].as_str(), picture.cursor), ("a\u{fffd}\u{fffd}b", (0, 4)));
    assert!(picture.ansi.contains("a\u{fffd}\u{fffd}b"));
}

#[test]
fn the_alternate_screen_is_empty_and_leaves_the_usual_one_as_it_was() {
    for (on, off) in [("1049", "1049"), ("47", "47"), ("1048;1047", "1047;1048")] {
        let inside = format!("usual\x1b[?{on}hother");
        let picture = played(&inside);
        assert!(picture.alternate);
        assert_eq!(picture.rows[0], "     other", "{on}");
        let picture = played(&format!("{inside}\x1b[3;3H\x1b[?{off}l"));
        assert!(!picture.alternate);
        assert_eq!(picture.rows[0], "usual", "{on}");
        // Without a word about the cursor it stays where it is.
        let cursor = if off == "47" { (2, 2) } else { (0, 5) };
        assert_eq!(picture.cursor, cursor, "{off}");
        // There is nothing left of it next time.
        assert_eq!(played(&format!("{inside}\x1b[?{off}l\x1b[?{on}h")).rows[0], "", "{on}");
    }
}

#[test]
fn titles_come_and_go() {
    for (output, title) in [
        ("\x1b]0;both\x07", "both"),
        ("\x1b]2;a;b\x1b\\", "a;b"),
        ("\x1b]1;icon\x07", ""),
        ("\x1b]2;one\x07\x1b[22;0;0t\x1b]2;two\x07\x1b[23;0;0t", "one"),
        ("\x1b]2;one\x07\x1b[23;2t", "one"),
    ] {
        assert_eq!(played(output).title, title, "{output:?}");
    }
}

#[test]
fn the_cursor_is_told() {
    for (output, cursor, visible) in [
        ("ab", (0, 2), true),
        ("\x1b[3;5H\x1b[?25l", (2, 4), false),
        // Behind the last column it is still in it.
        ("01234567890123456789", (0, 19), true),
    ] {
        let picture = played(output);
        assert_eq!((picture.cursor, picture.cursor_visible), (cursor, visible), "{output:?}");
    }
}

#[test]
fn what_is_drawn_anew_is_the_same() {
    for output in [
        "plain\r\n\x1b[1;31mred\x1b[0m \x1b[38:2::1:2:3;48;5;7mmixed\x1b[m",
        "\x1b[?1049h\x1b[2;2H漢字 e\u{301}\x1b[?25l",
        "01234567890123456789",
        "\x1b(0lqk\x1b(B\x1b[5;20H.",
        "a\u{fffd}b",
    ] {
        let first = played(output);
        let second = played(&first.ansi);
        assert_eq!(second.ansi, first.ansi, "{output:?}");
        assert_eq!((second.rows, second.cursor), (first.rows, first.cursor), "{output:?}");
    }
    assert!(played("\x1b[1;31mred").ansi.contains("\x1b[31;1mred"));
}

#[test]
fn output_may_be_cut_anywhere() {
    let output = "\x1b[2;3H\x1b(0lqk\x1b(B é漢\x1b[1;38:5:9m👍\x1b]0;t;u\x07\t.\x1b[3b";
    let whole = played(output);
    for at in 0..output.len() {
        let mut screen = Screen::new(SIZE, false);
        screen.feed(&output.as_bytes()[..at]);
        screen.feed(&output.as_bytes()[at..]);
        assert_eq!(screen.picture(), whole, "cut at {at}");
    }
}

#[test]
fn rows_that_left_at_the_top_come_back_when_it_grows() {
    let mut screen = Screen::new(Size { rows: 3, cols: 10 }, true);
    screen.feed(b"1\r\n2\r\n3\r\n4\r\n5");
    assert_eq!(screen.picture().rows, ["3", "4", "5"]);
    screen.resize(Size { rows: 2, cols: 10 });
    assert_eq!(screen.picture().rows, ["4", "5"]);
    screen.resize(Size { rows: 6, cols: 4 });
    let picture = screen.picture();
    assert_eq!(picture.rows, ["1", "2", "3", "4", "5", ""]);
    assert_eq!((picture.cursor, picture.size), ((4, 1), Size { rows: 6, cols: 4 }));
}

#[test]
fn whatever_is_printed_is_shown_without_a_panic() {
    // Every sequence with every number in the smallest terminals.
    for (rows, cols) in [(1, 1), (1, 2), (2, 1), (3, 7)] {
        let mut screen = Screen::new(Size { rows, cols }, true);
        for last in 0x40..0x7f_u8 {
            for number in ["", "0", "1", "2", "3", "7", "65535"] {
                for private in ["", "?", "!"] {
                    let last = char::from(last);
                    screen.feed(format!("漢a\x1b[{private}{number};{number}{last}").as_bytes());
                    screen.feed(format!("\t\n\x08\x1b{last}\x1b({last}\x1b#{last}").as_bytes());
                }
            }
            screen.resize(Size {
                rows: rows + u16::from(last % 3),
                cols: cols + u16::from(last % 5),
            });
            screen.picture();
        }
    }
}

#[test]
fn output_makes_the_same_picture_wherever_it_is_cut() {
    // Letters between characters of several bytes, whole and broken ones.
    let output =
        b"e\xcc\x81 \xf0\x9f\x91\x8da\xc3\xa4b\xe6\xbc\xa2\x1b[1m\xf0\x9fdata\xc3\x1b[mx\xe6\xbc";
    let picture = |pieces: &[&[u8]]| {
        let mut screen = Screen::new(SIZE, false);
        pieces.iter().for_each(|piece| screen.feed(piece));
        screen.picture()
    };
    let whole = picture(&[output]);
    assert_eq!(whole.rows[..2], ["e\u{301} 👍aäb漢\u{fffd}data\u{fffd}x", ""]);
    for first in 0..output.len() {
        for second in first..output.len() {
            let pieces = [&output[..first], &output[first..second], &output[second..]];
            assert_eq!(picture(&pieces), whole, "cut at {first} and {second}");
        }
    }
}

#[test]
fn another_terminal_is_brought_into_the_same_modes() {
    for chosen in [
        "",
        "\x1b[?1049h",
        "\x1b[?47h",
        "\x1b[?1h\x1b=",
        "\x1b[?2004h\x1b[?25l",
        "\x1b[?9h",
        "\x1b[?1000h",
        "\x1b[?1000;1002;1006h",
        "\x1b[?1003h\x1b[?1005h",
        "\x1b[?1049;1;2004;1000;1006h\x1b=",
        "\x1b[?1049;1;2004;1000;1006h\x1b=\x1b[?1049;1;2004;1000;1006l\x1b>",
    ] {
        let output = format!("usual{chosen}\x1b[2;3H\x1b[31mtext");
        let picture = played(&output);
        let mut other = Screen::new(SIZE, false);
        other.feed(b"of a shell");
        other.feed(picture.modes.as_bytes());
        other.feed(picture.ansi.as_bytes());
        assert_eq!(other.picture(), picture, "{chosen:?}");
        let modes = |screen: &vt100::Screen| {
            (
                (screen.alternate_screen(), screen.hide_cursor(), screen.bracketed_paste()),
                (screen.application_cursor(), screen.application_keypad()),
                (screen.mouse_protocol_mode(), screen.mouse_protocol_encoding()),
            )
        };
        // As an emulator knows them to which nothing is put into other words.
        let mut plain = vt100::Parser::default();
        plain.process(output.as_bytes());
        assert_eq!(modes(other.adapter.emulator().screen()), modes(plain.screen()), "{chosen:?}");
        // What was there before is there afterwards.
        if picture.alternate {
            other.feed(b"\x1b[?1049l");
            assert_eq!(other.picture().rows[0], "of a shell");
        }
    }
    assert_eq!(played("usual").modes, "");
}
