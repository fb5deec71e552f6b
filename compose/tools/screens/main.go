// Command screens draws what a terminal shows as an SVG: "screens -title TITLE -o FILE.svg < TEXT".
//
// A line that begins with "$ " or "# " is a command and is drawn bright. The text is drawn as text, so a reader can
// select and search it.
package main

import (
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
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

func main() {
	title := flag.String("title", "", "the title of the window")
	out := flag.String("o", "", "the file to write")
	flag.Parse()
	if *out == "" || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: screens -title TITLE -o FILE.svg < TEXT")
		os.Exit(2)
	}
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		err = os.WriteFile(*out, []byte(draw(*title, string(text))), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "screens:", err)
		os.Exit(1)
	}
}

// draw returns the SVG of a window with the text.
func draw(title, text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	columns := utf8.RuneCountInString(title)
	for i, line := range lines {
		lines[i] = expand(line)
		columns = max(columns, utf8.RuneCountInString(lines[i]))
	}
	width, height := float64(columns)*charWidth+2*margin, bar+len(lines)*lineHeight+margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%.0f" height="%d" viewBox="0 0 %.0f %d"`,
		width, height, width, height)
	fmt.Fprintln(&b, ` font-family="ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="13">`)
	fmt.Fprintf(&b, "<title>%s</title>\n<rect width=\"100%%\" height=\"100%%\" rx=\"6\" fill=\"#1e2430\"/>\n", escape(title))
	fmt.Fprintf(&b, "<text x=\"%d\" y=\"%d\" fill=\"#8a94a6\">%s</text>\n", margin, bar-9, escape(title))
	for i, line := range lines {
		if line == "" {
			continue
		}
		color := "#c8d0dc"
		if strings.HasPrefix(line, "$ ") || strings.HasPrefix(line, "# ") {
			color = "#9fd88f"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="%s" xml:space="preserve" textLength="%.1f">%s</text>`+"\n", margin,
			bar+(i+1)*lineHeight-4, color, float64(utf8.RuneCountInString(line))*charWidth, escape(line))
	}
	b.WriteString("</svg>\n")
	return b.String()
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
