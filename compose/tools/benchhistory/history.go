package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// samples are what a bench writes; see compose/e2e/benches.
type samples struct {
	Bench      string    `json:"bench"`
	Date       time.Time `json:"date"`
	Version    string    `json:"version"`
	Kernel     string    `json:"kernel"`
	Cores      int       `json:"cores"`
	OneCore    bool      `json:"oneCore"`
	Contenders []string  `json:"contenders"`
	Rows       []struct {
		Name    string               `json:"name"`
		Samples map[string][]float64 `json:"samples"`
	} `json:"rows"`
}

// past is a run as the history keeps it.
type past struct {
	Bench      string    `json:"bench"`
	Date       time.Time `json:"date"`
	Version    string    `json:"version"`
	Kernel     string    `json:"kernel"`
	Cores      int       `json:"cores"`
	OneCore    bool      `json:"oneCore,omitempty"`
	Rounds     int       `json:"rounds"`
	Contenders []string  `json:"contenders"`
	Rows       []median  `json:"rows"`
}

// median is one quantity's, by contender.
type median struct {
	Name    string             `json:"name"`
	Medians map[string]float64 `json:"medians"`
}

// addRun appends a run to the history, which it makes if there is none.
func addRun(history, path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var s samples
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	p, err := summarize(s)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	line, err := json.Marshal(p)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(history, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// summarize returns the medians of a run.
func summarize(s samples) (past, error) {
	p := past{Bench: s.Bench, Date: s.Date, Version: s.Version, Kernel: s.Kernel, Cores: s.Cores, OneCore: s.OneCore,
		Contenders: s.Contenders}
	if len(s.Contenders) < 2 || len(s.Rows) == 0 {
		return p, errors.New("it compares nothing: a run has two contenders and a row at least")
	}
	for _, r := range s.Rows {
		m := median{Name: r.Name, Medians: map[string]float64{}}
		for contender, values := range r.Samples {
			if len(values) == 0 {
				return p, fmt.Errorf("row %q has no sample of %s", r.Name, contender)
			}
			m.Medians[contender], p.Rounds = middle(values), max(p.Rounds, len(values))
		}
		p.Rows = append(p.Rows, m)
	}
	return p, nil
}

func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	i := len(sorted) / 2
	if len(sorted)%2 == 0 {
		return (sorted[i-1] + sorted[i]) / 2
	}
	return sorted[i]
}

func readHistory(path string) ([]past, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var runs []past
	for i, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var p past
		if err := json.Unmarshal(line, &p); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, i+1, err)
		}
		runs = append(runs, p)
	}
	return runs, nil
}
