// Command screens draws what a terminal shows as an SVG.
//
//	screens -title TITLE -o FILE.svg < TEXT
//	screens -title TITLE -o FILE.svg -size 100x30 -after 5s COMMAND [ARGUMENT...]
//
// Of a text, a line that begins with "$ " or "# " is a command and is drawn bright. A command is run on a terminal of
// its own. Text is drawn as text, so a reader can select and search it.
package main

import (
	"context"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

// Sizes in pixels. The width of a character holds for the usual fixed-width fonts; textLength makes it hold for all.
const (
	charWidth  = 7.8
	lineHeight = 18
	margin     = 16
	bar        = 28
	tabStop    = 8
)

// Colors of the window and of what is in it.
const (
	window  = "#1e2430"
	plain   = "#c8d0dc"
	dim     = "#8a94a6"
	bold    = "#ffffff"
	command = "#9fd88f"
)

// span is a text of one color, and the color behind it if that is not the window's.
type span struct{ text, color, back string }

func main() {
	title := flag.String("title", "", "the title of the window")
	out := flag.String("o", "", "the file to write")
	size := flag.String("size", "100x30", "columns and rows of the terminal that a command runs on")
	after := flag.Duration("after", 5*time.Second, "how long a command runs until its screen is drawn")
	flag.Parse()
	if *out == "" {
		fmt.Fprintln(os.Stderr, "usage: screens -title TITLE -o FILE.svg [COMMAND [ARGUMENT...]] [< TEXT]")
		os.Exit(2)
	}
	lines, err := read(*size, *after, flag.Args())
	if err == nil {
		err = os.WriteFile(*out, []byte(draw(*title, lines)), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "screens:", err)
		os.Exit(1)
	}
}

// read returns the lines to draw: those of a command's screen, or of the standard input.
func read(size string, after time.Duration, argv []string) ([][]span, error) {
	if len(argv) == 0 {
		text, err := io.ReadAll(os.Stdin)
		return fromText(string(text)), err
	}
	var t terminal
	if n, err := fmt.Sscanf(size, "%dx%d", &t.columns, &t.rows); n != 2 || err != nil || t.columns < 1 || t.rows < 1 ||
		t.columns > 1000 || t.rows > 1000 {
		return nil, fmt.Errorf("-size=%s: give columns and rows of 1 to 1000, such as 100x30", size)
	}
	return t.look(context.Background(), argv, after)
}

// fromText returns the lines of a text, those of commands bright.
func fromText(text string) [][]span {
	var lines [][]span
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		color := plain
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ") {
			color = command
		}
		if line = expand(line); line == "" {
			lines = append(lines, nil)
		} else {
			lines = append(lines, []span{{text: line, color: color}})
		}
	}
	return lines
}

// draw returns the SVG of a window with the lines.
func draw(title string, lines [][]span) string {
	columns := utf8.RuneCountInString(title)
	for _, line := range lines {
		n := 0
		for _, s := range line {
			n += utf8.RuneCountInString(s.text)
		}
		columns = max(columns, n)
	}
	width, height := float64(columns)*charWidth+2*margin, bar+len(lines)*lineHeight+margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d"`,
		width, height, width, height)
	fmt.Fprintln(&b, ` font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13">`)
	fmt.Fprintf(&b, "<title>%s</title>\n", escape(title))
	fmt.Fprintf(&b, "<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"%s\"/>\n", window)
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" fill=\"%s\">%s</text>\n", margin, bar-9, dim, escape(title))
	for i, line := range lines {
		x := float64(margin)
		for _, s := range line {
			x += s.draw(&b, x, bar+i*lineHeight)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// draw writes the text with its upper left corner at x and y, and returns its width.
func (s span) draw(b *strings.Builder, x float64, y int) float64 {
	width := float64(utf8.RuneCountInString(s.text)) * charWidth
	if s.back != "" {
		fmt.Fprintf(b, `<rect x="%g" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", x, y, width, lineHeight, s.back)
	}
	if strings.TrimSpace(s.text) != "" {
		fmt.Fprintf(b, `<text x="%g" y="%d" fill="%s" xml:space="preserve" textLength="%.1f">%s</text>`+"\n", x,
			y+lineHeight-4, s.color, width, escape(s.text))
	}
	return width
}

// expand replaces tabs by spaces, and drops the spaces at the end.
func expand(line string) string {
	var b strings.Builder
	column := 0
	for _, r := range strings.TrimRight(line, " \t\r") {
		if r != '\t' {
			b.WriteRune(r)
			column++
			continue
		}
		n := tabStop - column%tabStop
		b.WriteString(strings.Repeat(" ", n))
		column += n
	}
	return b.String()
}

func escape(text string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(text)) // a Builder does not fail
	return b.String()
}
