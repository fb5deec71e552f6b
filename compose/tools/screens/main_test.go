package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
)

func TestDraw(t *testing.T) {
	svg := draw("a & b", "$ microlet status\nSERVICE\tSTATE \n\n<bus>\tready\n\n")
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
