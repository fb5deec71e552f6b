//go:build browser

package main

import (
	"bytes"
	"context"
	"html"
	"image"
	"image/color"
	"image/png"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	browser     = "chromium-headless-shell"
	browserTime = 2 * time.Minute
	// barHeight is that of the bar above the picture, as page.html has it.
	barHeight = 36
	// A panel in which fewer colors are seen shows nothing but its background and its frame.
	leastColors = 4
)

// TestPageInABrowser has a real browser render the page of the dashboard that is shipped: every panel has its title,
// and something is drawn in it.
func TestPageInABrowser(t *testing.T) {
	b, err := read("../../../deploy/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	s, err := newSite(b, answers(t, &asked), 5*time.Minute, 30*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s.handler())
	t.Cleanup(server.Close)
	bottom := 0
	for _, p := range b.Panels {
		bottom = max(bottom, p.GridPos.Y+p.GridPos.H)
	}
	size := "--window-size=" + strconv.Itoa(width) + "," + strconv.Itoa(barHeight+bottom*unitHeight+gap)

	dom := html.UnescapeString(string(browse(t, "--dump-dom", size, server.URL)))
	for _, p := range b.Panels {
		if !strings.Contains(dom, ">"+p.Title+"<") {
			t.Errorf("the page has no panel %q", p.Title)
		}
	}
	if strings.Contains(dom, "No data") {
		t.Error("a panel has no data, and every query was answered")
	}
	file := filepath.Join(t.TempDir(), "page.png")
	browse(t, "--screenshot="+file, "--hide-scrollbars", size, server.URL)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	picture, err := png.Decode(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range b.Panels {
		g := p.GridPos
		place := image.Rect(g.X*width/columns+gap, g.Y*unitHeight+gap, (g.X+g.W)*width/columns, (g.Y+g.H)*unitHeight).
			Add(image.Pt(0, barHeight))
		if p.Type != "row" {
			place.Min.Y += inset + gap // the title
		}
		if !place.In(picture.Bounds()) {
			t.Fatalf("panel %q is at %v, and the page is %v", p.Title, place, picture.Bounds())
		}
		seen := map[color.Color]bool{}
		for y := place.Min.Y; y < place.Max.Y; y++ {
			for x := place.Min.X; x < place.Max.X; x++ {
				seen[picture.At(x, y)] = true
			}
		}
		if len(seen) < leastColors {
			t.Errorf("panel %q shows nothing: it has %d colors", p.Title, len(seen))
		}
	}
}

// browse runs the browser and returns what it prints.
func browse(t *testing.T, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), browserTime)
	defer cancel()
	// Root has no sandbox, and the page is ours.
	args = append([]string{"--no-sandbox", "--disable-gpu", "--user-data-dir=" + t.TempDir()}, args...)
	cmd := exec.CommandContext(ctx, browser, args...)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v: %s", browser, err, said.String())
	}
	return out
}
