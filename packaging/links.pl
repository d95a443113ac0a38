#!/usr/bin/env perl
# links.pl [--check] DIRECTORY: in all pages below the directory, links to files that are not there (sources, which a package has
# not) become plain text. With --check they are only named, and are a failure.
use strict;
use warnings;
use File::Basename qw(dirname);
use File::Find qw(find);

my $check = @ARGV && $ARGV[0] eq '--check' ? shift : '';
my ($directory) = @ARGV;
my ($seen, $dead) = (0, 0);

sub page {
    my ($file) = @_;
    open my $in, '<', $file or die "$file: $!";
    local $/;
    my $text = <$in>;
    close $in;
    my $result = '';
    # A link may have code in its words, so it is looked for in the whole text, but not within a block.
    for my $part (split /(^```.*?^```)/ms, $text) {
        if ($part !~ /^```/) {
            $part =~ s{\[((?:`[^`]*`|[^\[\]])*)\]\(((?!https:)[^)#\s]+)(\#[^)]*)?\)}{
                $seen++;
                my ($words, $target, $all) = ($1, $2, $&);
                if (-e dirname($file) . "/$target") { $all }
                else { $dead++; print "$file: $target\n" if $check; $words }
            }gse;
        }
        $result .= $part;
    }
    return if $check || $result eq $text;
    open my $out, '>', $file or die "$file: $!";
    print $out $result;
    close $out;
}

find({ wanted => sub { page($File::Find::name) if /\.md$/ }, no_chdir => 1 }, $directory);
print $check ? "$seen links of the package lead somewhere\n" : "$dead of $seen links lead to sources and are text in the package\n"
    unless $check && $dead;
exit($check && $dead ? 1 : 0);
