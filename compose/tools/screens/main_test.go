package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"
)

func TestDraw(t *testing.T) {
	svg := draw("a & b", fromText("$ microlet status\nSERVICE\tSTATE \n\n<bus>\tready\n\n"))
	decoder := xml.NewDecoder(strings.NewReader(svg))
	var texts []string
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatalf("%v in %s", err, svg)
		}
		if text, is := token.(xml.CharData); is && strings.TrimSpace(string(text)) != "" {
			texts = append(texts, string(text))
		}
	}
	want := []string{"a & b", "a & b", "$ microlet status", "SERVICE STATE", "<bus>   ready"}
	if got := strings.Join(texts, "|"); got != strings.Join(want, "|") {
		t.Errorf("texts %q, want %q", got, want)
	}
	if strings.Count(svg, "#9fd88f") != 1 {
		t.Errorf("the command alone is bright: %s", svg)
	}
}

// TestTerminal: colors, what is overwritten, and a question that the terminal answers.
func TestTerminal(t *testing.T) {
	script := `printf 'old'; printf '\r\033[31mred\033[0m \033[7m back \033[0m\n'; stty size; printf '\033[6n'
		stty -icanon -echo; head -c 6 >/dev/null; echo answered`
	screen := terminal{columns: 40, rows: 10}
	lines, err := screen.look(t.Context(), []string{"sh", "-c", script}, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, line := range lines {
		text := ""
		for _, s := range line {
			text += s.text
		}
		texts = append(texts, text)
	}
	got := strings.Join(texts, "|")
	if !strings.HasPrefix(got, "red  back |10 40|") || !strings.HasSuffix(got, "answered") {
		t.Fatalf("the screen is %q", got)
	}
	if red := lines[0][0]; red.text != "red" || red.color == plain || red.back != "" {
		t.Errorf("red is %+v", red)
	}
	if back := lines[0][2]; back.text != " back " || back.color != window || back.back != plain {
		t.Errorf("what is reversed is %+v", back)
	}
}

// TestACommandThatDoesNotEnd is ended.
func TestACommandThatDoesNotEnd(t *testing.T) {
	lines, err := terminal{columns: 40, rows: 10}.look(t.Context(), []string{"sleep", "1000"}, time.Second)
	if err != nil || len(lines) != 0 {
		t.Errorf("the screen is %v, %v", lines, err)
	}
}

func TestSize(t *testing.T) {
	for _, size := range []string{"", "80", "0x5", "axb", "80x100000"} {
		_, err := read(size, time.Second, []string{"true"})
		if err == nil || !strings.Contains(err.Error(), "-size="+size) {
			t.Errorf("%q: %v", size, err)
		}
	}
}
