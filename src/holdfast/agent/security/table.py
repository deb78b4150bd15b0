"""The table of programs: the options that each may have, and what it does with its operands.

An entry is `names kind options`; lines that begin with a blank go on with it. `git.log,diff` are
commands of git, `npm,pnpm.run` is a command of both, and `pnpm.` has the options that stand before
any command. An option that is not in the entry makes the risk unknown. `-ab` are letters without a
value, `--long` is a name, `#` allows `-20`, and `&name` is a group of `GROUPS`. Signs behind
options say what they do:

    =  have a value      ?  have one only where it is glued on (`-i.bak`, `--color=auto`)
    <  read the file that the value names      >  write to it      @  run its code      %  install it
    +  change something (medium)               ^  throw work away (high)

A kind has a letter for each operand; a star behind one repeats it, and letters behind the star are
for the last operands:

    r  read the file         R  read all that is in the folder    l  look at it, not into it     w  write to it
    c  run its code          p  a path or a name of the project   s  a Go package                g, q  a revision or path of git
    u  ask this address      i  install this Python package       y  install this npm package    t  plain text
    e  a plain name          x  anything: the words, options too, are judged elsewhere           0  none
    d, f, j, k, z, Q  as `date`, `yq`, `jq`, `dd`, `kill` and `sqlite3` take them

Signs behind a kind: `+` changes or fetches something (medium), `!` runs the project's own code
(medium), `~` may make links, so that the paths of later commands are not known, `^` is high, for
the reason that follows.
"""

from __future__ import annotations

GROUPS = {
    # Long options of programs that only read. Their values are glued on: a word behind one counts
    # as an operand, which is judged more strictly.
    "long": """--all? --almost-all --apparent-size --bytes? --brief --canonicalize --chars --check?
        --classify? --color? --colour? --columns? --count
        --delimiter? --dereference --directory --dirsfirst --extended-regexp --field-separator?
        --fields? --fixed-strings --follow? --format?
        --full-time --group-directories-first --human-readable --ignore-all-space
        --ignore-blank-lines --ignore-case --ignore-space-change
        --inode --inodes --invert-match --key? --line-number --lines? --list? --long --max-depth?
        --max-line-length --mime-type --noreport
        --no-filename --no-messages --null --numeric-sort --only-matching --perl-regexp --pid?
        --ppid? --quiet --raw --recursive --repeated
        --reverse --show-all --si --side-by-side --silent --size --sort? --squeeze-repeats --stable
        --suppress-common-lines --summarize
        --text --time? --time-style? --total? --type? --unified? --unique --utc --verbose
        --version-sort --width? --with-filename
        --word-regexp --words --wrap? --zero --zero-terminated""",
    "log": """# -abcdefghiklpqrstuvwzEFPRWy0 -nLGSU= -M? -B? -C? --oneline --stat? --numstat
        --shortstat --dirstat? --summary --name-only
        --name-status --patch --no-patch --raw --graph --decorate? --no-decorate --all --branches?
        --tags? --remotes? --pretty? --format=
        --abbrev-commit --no-abbrev-commit --abbrev? --date= --author= --committer= --grep=
        --all-match --invert-grep --since= --after=
        --until= --before= --max-count= --skip= --merges --no-merges --first-parent --follow
        --ancestry-path? --cherry --cherry-pick
        --left-right --left-only --right-only --reverse --topo-order --date-order --walk-reflogs
        --source --no-notes --parents --color?
        --no-color --color-words? --word-diff? --cached --staged --merge-base --unified=
        --function-context --ignore-space-change
        --ignore-all-space --ignore-space-at-eol --ignore-blank-lines --minimal --patience
        --histogram --find-renames? --no-renames
        --diff-filter= --pickaxe-regex --relative? --text --binary --full-index --exit-code --quiet
        --check --compact-summary --no-prefix
        --submodule? --no-ext-diff --no-textconv --no-index --count --objects --no-commit-id --root
        --no-pager --no-walk?""",
    "ref": "--count= --sort= --format= --points-at= --merged? --no-merged? --contains? --no-contains? --color? --no-color --column? --list",
    "replay": "--continue --abort --skip --quit --no-edit --no-commit --signoff --quiet --verbose --no-verify --no-gpg-sign --strategy-option= -X=",
    "node": """-DEPOdsya -w? -C?@ --save-dev --save --save-exact --save-prod --save-optional
        --no-save --legacy-peer-deps --force --silent
        --no-audit --no-fund --prefer-offline --ignore-scripts --production --omit? --include?
        --json --depth? --all --long
        --frozen-lockfile --no-frozen-lockfile --if-present --workspaces --workspace?
        --workspace-root --loglevel? --quiet --verbose
        --parseable --no-progress --offline --dev --only? --immutable --check-cache --yes
        --audit-level? --pattern? --recursive -r""",
    "tool": """-qvsnjhlTiwdbxaA --fix --check --diff --quiet --verbose --write --watch? --format?
        --output-format? --reporter? --statistics
        --select? --ignore? --extend-select? --extend-ignore? --exclude? --extend-exclude?
        --exit-zero --no-fix --show-fixes
        --unsafe-fixes --no-cache --line-length? --max-line-length? --max-complexity?
        --target-version? --config?@ --strict --pretty
        --ignore-missing-imports --show-error-codes --no-error-summary --disable? --enable? --count
        --color? --no-color --ext?
        --max-warnings? --cache --noEmit --no-emit --project?@ --skipLibCheck --list-different
        --ignore-path?@ --errors-only
        --follow-imports? --python-version? --jobs? --profile? --check-only --fast --safe --preview
        --show-source --in-place --recursive
        --all-files --all --workspace --json -p?@ -l? -E -W? -r --config-file?@ --rcfile?@ --build
        --debug --dry-run --list --level? --ci
        --mode? --port? --run --coverage? --parallel? --filter? --no-interaction --strict-markers
        --settings? --keepdb --failfast
        --noinput --no-input --verbosity? --plan --trace --traceback --bail? --stop-on-failure
        --testdox --no-restore --no-build
        --single-run""",
    "go": """--v --race --cover --short --count= --run= --bench= --benchmem --timeout= --parallel=
        --tags= --covermode= --coverprofile>
        --failfast --json --m --u --n --x --o> --mod= --trimpath --list= --skip= --cpu= --shuffle=
        --f= --deps --e --test --compiled
        --a --p=""",
    "docker": "-aqnft --all --quiet --no-trunc --format? --filter? --tail? --since? --follow --no-stream --services --no-color --timestamps",
    "kubectl": "-Awf -nlcof? --all-namespaces --namespace? --tail? --since? --previous --watch --selector? --show-labels --container? --output?",
    "gh": "-cw -LsRalqBHA? --limit? --state? --json? --repo? --comments --log --log-failed --name-only --author? --label? --jq? --search? --branch?",
}

PROGRAMS = """
echo,true,false,:,whoami,expr,sleep,tty,groups,yes,factor,basename,dirname,logname,type,clear,exit,break,continue,dirs,help
    x*

getconf,cal,numfmt t* -13jmsy --to? --from?
ar.t,tv r*
jar.tf,tvf r*
base32,base64 r* -diD -w= --decode --ignore-garbage &long
cat r* -AbeEnstTuv --number &long
cmp,comm,column,expand,unexpand,fmt,fold,nl,pr,join,paste,tac,rev,tsort,sum,size,strings,od,hexdump,hexyl,nm,objdump,readelf,zcat,bzcat,xzcat,
    c++filt,csvlook,csvstat,csvcut,csvgrep r* # -0123abcdefhgiklmnopqrstuvwxyzACDEFHIJLMNPRSTVW?<
    --table --separator? --output-separator? --json --syms
    --disassemble? --source --demangle? --dynamic --extern-only --defined-only --undefined-only
    --check-order --nocheck-order &long
cksum,md5sum,sha1sum,sha224sum,sha256sum,sha384sum,sha512sum,b2sum r* -btwz --tag -l= -a= &long
cut r* -nsz -bcdf= --complement --only-delimited --output-delimiter= &long
date d* -uR -d= -I? --date= --iso-8601? --rfc-3339= --utc
df l* -aHhiklPTv -tBx= --output? &long
diff,colordiff r* # -abBcdeEHiNnpPqrstTuvwyZ -CUIxWFSD= --brief --new-file --exclude=
    --strip-trailing-cr --minimal --label= &long
du l* -0aAbcDHhkLlmPSsx -dtB= --max-depth= --exclude= &long
fd,fdfind tl* # -HIsiFaLp0guqlh1 -deEtTScoj= --hidden --no-ignore --extension= --type= --exclude=
    --max-depth= --glob
file r* -bEhikLNnrsSv0 -eFP= &long
free,w,who,users,last,lscpu,lsmod,lsblk,uptime 0 # -abhmgktwpsfiuHTJlq &long
hostnamectl,timedatectl 0
grep,egrep,fgrep tr* # -abcEFGHhiIlLnoPqrRsTuUvwxyZz -eABCmdD= -f< --regexp= --file< --max-count=
    --directories= --include= --exclude=
    --exclude-dir= --after-context= --before-context= --context= --files-with-matches
    --files-without-match --binary-files=
    --dereference-recursive --label= &long
zgrep tr* -inclEvwFo
head r* # -qvz -nc= --lines= --bytes= &long
tail r* # -fFqvz -ncs= --lines= --bytes= --retry --sleep-interval= &long
hostname 0 -adfisI
iconv r* -cls -ft= -o> --from-code= --to-code= --output>
id t* -agGnruzZ
ip.addr,address,a,route,r,link,l,neigh 0
ip.addr,a,route,link.show,s t*
jq jr* -nrjaeCMsScR --null-input --raw-output --join-output --exit-status --color-output
    --monochrome-output --slurp --sort-keys
    --compact-output --raw-input --tab --indent=
less,more r* # -aeEFgGiIJmMnNqQrRsSuUwWX
locale,lspci,lsusb,sysctl e* -ackvnmtqNA &long
nvidia-smi 0 -qL
ls,dir,vdir l* -aAbBcCdDfFgGhHiklLmnNopqQrRsStuUvxXZ1 -ITw= --ignore= --hide=
    --group-directories-first --indicator-style= &long
exa,eza,lsd l* -laTRhtrSF1 --tree --level= --git --icons &long
lsof t* -abhlnNPRtUvV -cdgpsu= -i?
man,whatis,apropos e* -fkaw
netstat,ss,pstree,vmstat,iostat,nproc,arch,uname,lsb_release t* -aAcghlmnopstTuUevrdi6Hx --all
pgrep,pidof t* -afilnovxs -uPt= &long
ps t* -AaCdeFfHjLlMNTwyV -CGgopqstuUknO= --forest --headers --no-headers --sort= --format= --pid=
    --ppid= --user=
pwd 0
readlink,realpath l* -femnqsvzLP --canonicalize-existing --canonicalize-missing --relative-to= &long
rg tr* # -abcFHhiIlLnNopPqrRsSuUvwxz0. -eABCgmtTjMEd= -f< --regexp= --file< --glob= --iglob= --type=
    --type-not= --type-list --files
    --hidden --no-ignore --no-ignore-vcs --smart-case --case-sensitive --no-line-number
    --count-matches --files-with-matches
    --files-without-match --max-count= --max-depth= --max-columns= --multiline --multiline-dotall
    --pcre2 --replace= --stats --unrestricted
    --vimgrep --heading --no-heading --json --column --after-context= --before-context= --context=
    --trim --threads= --no-config &long
awk,gawk,mawk,nawk tr* -F= -v= --field-separator= --assign=
sed r* -nErszu -el= -i? --expression= --in-place? --quiet --silent --regexp-extended --null-data
    --posix --debug --sandbox
seq t* # -w -fs= &long
shuf r* -rz -n= &long
sort r* # -bdfghiMnrRVcCmsuz -ktS= -o> --key= --field-separator= --parallel= --output> &long
stat l* -Lft -c= --printf= --terse &long
top t* -bc -n= -p= -u= -o=
tr t* -cCdst --delete --complement &long
tree l* -aAdfiCDFghilnNpqrsStuUvxXJQ -LPI= --prune --gitignore --filelimit= --matchdirs &long
uniq rw # -cdDiuz -fsw= --count --repeated --unique --ignore-case --skip-fields=
wc r* -clmLw &long
which,whereis t* -asbm --all
xmllint r* --noout --format --valid --html --nowarning --recover --huge --xpath=
xxd rw -abCdeEipruhv -cglosn=
bat,batcat r* -nAp --plain --number --style= --language= -l= -r= --line-range= --color= --paging=

bash,sh,dash,zsh ca*! -exun
xargs x* -0rt -dnPLI= --null --no-run-if-empty --verbose --delimiter= --max-args= --max-procs=
    --replace?
timeout x* -fvp -k= -s= --foreground --preserve-status --kill-after= --signal=
nice x* # -n=
time x* -pv -f=
nohup x*
stdbuf x* -ioe=
strace x* -cfqtTry -e= -s=
valgrind x* -qv --leak-check= --track-origins= --error-exitcode=

touch w*+ -acmh -dt= -r< --date= --reference< --no-create
mkdir w*+ -pv -m= --mode= --parents --verbose
rmdir w*+ -pv --ignore-fail-on-non-empty --parents
unlink w+
truncate w*+ -c -s= --size= --no-create
tee w* -aip --append
cp r*w+ -abdfiHlLnpPrRsTuvx -t> -S= --archive --backup? --force --no-clobber --no-dereference
    --preserve? --recursive --suffix= --verbose
    --target-directory> --no-target-directory --update? --parents
mv w*w+ -fintTuv -t> --force --no-clobber --target-directory> --no-target-directory --verbose
install r*w+ -bcCDpTv -m= --mode= --verbose
dd k*+
rsync R*w+~ -avzrlptgoDHAXxnPhquWdLkcIO --archive --verbose --quiet --compress --recursive --update
    --links --dry-run --checksum --exclude=
    --include= --progress --stats
rm w*+ -rRfdvi -I --recursive --force --dir --verbose --one-file-system
chmod w*+ -cfvR --recursive --verbose
ln l*w+~ -sfnvrT --symbolic --force --no-dereference
gzip,gunzip,bzip2,bunzip2,xz,unxz,zstd,unzstd r* # -cdfkltqvzhn --stdout --to-stdout --decompress
    --force --keep --list --test -T=
zip wR*+ # -rqjvuFfeSy -x= -i= --recurse-paths --quiet --exclude=
unzip rt*+ -lvtZzpqonjuCaL -d> -x=
tar r*+ -cxtrujJzZavpkmoOhS -f= -C= --create --extract --get --list --append --update --file=
    --directory= --exclude= --strip-components=
    --gzip --bzip2 --xz --zstd --auto-compress --verbose --to-stdout --no-same-owner
    --no-same-permissions --wildcards --sort= --mtime=
    --owner= --group= --numeric-owner
kill z*+
sqlite3 wQ* --header --noheader --csv --json --line --list --column --box --table --markdown
    --readonly --batch --bail

git.log,diff,show,rev-list,diff-tree,diff-index,diff-files,whatchanged,cherry,range-diff g* &log
git.status g* -sbvz -u? --short --branch --show-stash --porcelain? --long --verbose
    --untracked-files? --ignored? --ignore-submodules?
    --column? --no-column --ahead-behind --no-ahead-behind --renames --no-renames
git.blame g* # -bcefklnpstwz -lL= -M? -C? --line-porcelain --porcelain --show-name --show-number
    --show-email --root --since= --date=
git.grep tg* # -aiIwvhHEFGPnlLzcopqWr -eABCm= --ignore-case --word-regexp --line-number
    --files-with-matches --name-only --count --heading
    --break --show-function --extended-regexp --perl-regexp --fixed-strings --and --or --not
    --all-match --cached --untracked
    --only-matching --function-context --column --color? --no-color --text
git.ls-files g* -cdmosuktvz -x= --cached --deleted --modified --others --ignored --stage --unmerged
    --directory --exclude=
    --exclude-standard --full-name --error-unmatch --recurse-submodules --deduplicate --eol
git.ls-tree g* -drtlz --long --name-only --name-status --full-name --full-tree --abbrev? --format=
git.shortlog g* -nsec --numbered --summary --email --group= --no-merges --all --since= --until=
    --after= --before=
git.cat-file,merge-base,name-rev,show-ref,check-ignore,describe,count-objects g* -tspeadqvznH --all
    --always --tags --heads --contains
    --verify --octopus --is-ancestor --fork-point --name-only --abbrev? --long --match= --exclude=
    --dirty? --exact-match --first-parent
    --hash?
git.for-each-ref t* --shell &ref
git.rev-parse t* -q --show-toplevel --git-dir --git-common-dir --absolute-git-dir --show-prefix
    --show-cdup --is-inside-work-tree
    --is-bare-repository --is-shallow-repository --abbrev-ref? --symbolic --symbolic-full-name
    --verify --short? --quiet --all --branches?
    --tags? --remotes? --git-path=
git.version,help,var t* -ag --build-options --all
git.remote,worktree,submodule,bisect,sparse-checkout,reflog 0 # -v --verbose --all --oneline
git.worktree,sparse-checkout.list 0 --porcelain -v
git.submodule.status,summary t* --recursive --cached
git.reflog.show,HEAD g* &log
git.remote.get-url t* --all --push
git.remote.show t*+ -n
git.ls-remote u*+ -htq --heads --tags --refs --symref --quiet
git.lfs.ls-files,status,env,version t* -lans --long --all --name-only --size --json
git.lfs.pull,fetch,checkout,track t*+
git.bisect.start,good,bad,skip,reset,log t*+~
git.stash 0+~ -ukqS -m= --include-untracked --keep-index --quiet
git.stash.push,save q*+~ -ukqSp -m= --include-untracked --keep-index --quiet --message= --staged
git.stash.pop,apply,drop,branch t*+~ -q --index --quiet
git.stash.list,show t* &log
git.stash.clear ^ deletes all that was put aside
git.branch t* -avrlqdi -u=+ -DMfC^ -m+ --all --verbose --remotes --show-current --move+ --quiet
    --delete --set-upstream-to=+ --track?
    --no-track --unset-upstream+ --force^ --abbrev? &ref
git.tag t* -al -m= -n? -df^ --message= --annotate --delete^ --force^ &ref
git.config t* -lz --get --get-all --list --get-regexp --show-origin --show-scope --global --local
    --system --name-only --bool --int --unset
    --add --replace-all
git.add,stage w*+ -AuvnN --all --update --verbose --dry-run --intent-to-add --renormalize
git.commit q*+ -aqvsn -mcC= -u? -F< --all --message= --author= --date= --amend --no-edit --no-verify
    --allow-empty --allow-empty-message
    --signoff --quiet --verbose --dry-run --short --fixup= --squash= --reuse-message= --only
    --include --no-gpg-sign --trailer=
    --reset-author --file<
git.init w*+ -q -b= --quiet --bare --initial-branch=
git.gc 0+ -q --quiet --auto
git.mv w*w+~ -vkn --verbose --dry-run
git.rm w*+~ -qnr --quiet --dry-run --cached --ignore-unmatch
git.apply r*+~ -vR3N -p= --check --stat --numstat --summary --verbose --reverse --3way --index
    --cached --recount --whitespace= --reject
git.am r*+~ -3qsk --3way --keep-cr &replay
git.archive t*+ -v -o> --output> --format= --prefix= --list
git.format-patch t*+ # -nNkqs --stdout --numbered --no-numbered --cover-letter --subject-prefix=
    --signoff --root
git.checkout t*+~ -qtdf -bB= --quiet --detach --track? --no-track --guess --no-guess --orphan=
    --force --ours --theirs
git.switch t*+~ -qd -c= --quiet --create= --detach --guess --no-guess --track? --no-track --orphan=
git.restore q*+~ -Sq --staged --quiet -s= --source= -W --worktree
git.reset q*+ -qN --quiet --soft --mixed --no-refresh --hard^ --merge^ --keep^
git.clean t* -ndxXqfi -e= --dry-run --quiet --force --exclude=
git.revert t*+~ -nxs -m= --mainline= &replay
git.cherry-pick t*+~ -nxs -m= --mainline= --allow-empty &replay
git.rebase t*+~ -qvn --onto= --autostash --no-autostash --keep-empty --rebase-merges?
    --committer-date-is-author-date &replay
git.merge t*+~ -qvn -m= -s= --no-ff --ff --ff-only --squash --commit --message= --stat --no-stat
    --allow-unrelated-histories &replay
git.fetch ut*+ -apqvtn --all --prune --tags --no-tags --quiet --verbose --depth= --unshallow
    --progress --no-progress --dry-run --multiple
git.pull ut*+~ -qvrn -X= --rebase? --no-rebase --ff-only --ff --no-ff --quiet --verbose --tags --all
    --no-edit --autostash --prune --depth=
git.clone uw+~ -qvnl -b= -o= --branch= --depth= --single-branch --no-single-branch --quiet --verbose
    --no-checkout --bare --mirror --no-tags
    --progress --filter= --sparse --origin=
git.push ^ sends out history
git.remote.add,set-url,rm,remove,rename,set-head,prune,update ^ changes where the repository sends
    its work
git.worktree.add,move,remove,prune,lock,unlock,repair ^ makes, moves or deletes a working tree
git.submodule.add,update,init,deinit,foreach,sync,set-url ^ does what submodules name
git.reflog.expire,delete ^ deletes what could be taken back
git.symbolic-ref.--short g
git.filter-branch,filter-repo,update-ref,send-email,symbolic-ref ^ rewrites or sends out history

pytest p*! -qvxslh -knmWr= --tb= --maxfail= --durations= --lf --ff --nf --sw --last-failed
    --failed-first --stepwise --exitfirst --verbose
    --quiet --no-header --no-summary --showlocals --collect-only --co --capture= --cov?
    --cov-report= --cov-branch --no-cov --cov-append
    --cov-fail-under= --ignore= --ignore-glob= --deselect= --color= --runslow --disable-warnings
    --disable-pytest-warnings --import-mode=
    --timeout= --numprocesses= --dist= --forked --reruns= --randomly-seed= --benchmark-only
    --benchmark-skip --benchmark-disable
    --doctest-modules --doctest-glob= --fixtures --markers --cache-clear --setup-show
    --asyncio-mode= --snapshot-update --log-cli-level=
    --log-level= --full-trace --junitxml> --junit-xml> --html> --log-file> -c@ --count= --ds=
    --create-db --reuse-db --no-migrations --slow
    -p= --override-ini= --strict-markers --strict-config --runxfail --setup-plan
jest,vitest,mocha,playwright,cypress p*! -uioibw -c@ --watchAll? --runInBand --testNamePattern=
    --testPathPattern= --reporter=
    --passWithNoTests --updateSnapshot --maxWorkers= --forceExit --detectOpenHandles --grep= -t= -g=
    --timeout= --headed --list --listTests
    --only-changed --findRelatedTests --colors --no-coverage --environment= --exit --env= &tool
ruff,black,mypy,pyright,flake8,pylint,isort,eslint,prettier,tsc,stylelint,rubocop,autopep8,yapf,pyflakes,vulture,bandit,golangci-lint,
    shellcheck,clang-format,clang-tidy,rustfmt,gofmt,goimports,phpstan,yamllint,hadolint,cppcheck,actionlint,tflint,staticcheck,swiftlint,
    ktlint,oxlint,ty,pre-commit,codespell,pydocstyle,pycodestyle,pyupgrade,radon,autoflake,stubtest,semgrep,deptry,djlint,luacheck,pipdeptree,depcheck,
    ansible-lint,buf p*! &tool
rake,just p*! -nqvTPl --list --dry-run --tasks --trace
rspec,phpunit,sbt,ant,grunt,gulp,karma,ng,next,nuxt,vite,webpack,rollup,esbuild,turbo,nx,lerna,vue-tsc,svelte-check,tsd,astro,phpcs,psalm,
    pest,behave,cucumber,invoke,task,busted,prove p*! -c@ -ft? &tool
django,django-admin,alembic,flask,celery,nose2,nosetests,towncrier,pdoc,sphinx-build p*! -WEaf &tool
mkdocs.build p*! -qcs --strict --clean
mix.deps.get p*!
ldd p*! -vur
ctags p*! -xR -f>
sqlfluff p*! --rules? --dialect? --force &tool
tox,nox p*! -qvrpla -e= -s= --list --recreate --parallel?
coverage p*! -mi --branch --source= --show-missing --skip-covered --include= --omit= --append -a
    --fail-under= -d> -o>
mvn,mvnw,gradle,gradlew p*! -qBeoXi -am -D= --quiet --batch-mode --offline --info --debug
    --stacktrace --tests= --no-daemon --console=
    --parallel --rerun-tasks -x= -P= -pl= -f@ --all --configuration=
make,gmake p*! -knpsBiw -j? -O? -C@ -f@ --keep-going --dry-run --silent --always-make --jobs?
    --directory@ --file@ --just-print --question
    -q
cmake p*! -S@ -B> -G= -D= -j? --build> --target= --config= --parallel? --preset= --fresh --verbose
ctest p*! -VNQ -R= -E= -j= --output-on-failure --verbose --test-dir@
meson.setup,test,compile,configure p*! -v -C@ --buildtype= --suite=
ninja p*! -v -j= -C@
gcc,g++,cc,c++,clang,clang++ r*! -cvESgs -o> -O? -W? -I< -L< -l= -D= -U= -x=
rustc r*! -O -g -o> --edition= --crate-type= --explain=
javac p*! --d> --release= --g --cp@ --classpath@ --source= --target= --encoding=
java p*! --cp@ --classpath@ --jar@ --ea --version
javap t*! --c --p --v --cp@ --classpath@
node,nodejs ca*! --test --check --watch --no-warnings --trace-warnings --enable-source-maps
    --experimental-strip-types
    --experimental-vm-modules --test-reporter= --max-old-space-size=
tsx,ts-node,lua,perl,ruby,php,julia,Rscript ca*! -wclT -I? --vanilla --project?
python ca*! -uBvIsSEOb -W= -X=
python.unittest p*! -vqfbc -k= --verbose --failfast -s@ -p= -t@
python.doctest p*! -vfo=
python.compileall,py_compile w*! -qf
python.json.tool rw! --sort-keys --indent= --compact --no-ensure-ascii --json-lines
python.venv w*! --clear --system-site-packages --without-pip
virtualenv w*! -q -p=
python.build p*! -nsw --wheel --sdist --no-isolation
python.cProfile ca*! -s=
python.pdb ca*!
python.site,this,platform,sysconfig 0!

pip.list,show,freeze,check,debug,inspect,help t* -vfloeq --format= --outdated --uptodate --local
    --user --editable --verbose --files
    --not-required --exclude= --quiet --all
pip.index.versions t*+ --pre
pip.config,cache.list,dir,info t*
pip.install,download,wheel i*! -qUvI -r@ -c@ -e% -d> -t> --quiet --upgrade --verbose --no-deps
    --no-cache-dir --force-reinstall --pre
    --no-build-isolation --editable% --requirement@ --constraint@ --ignore-installed --no-input
    --prefer-binary --only-binary= --no-binary=
    --disable-pip-version-check --root-user-action= --progress-bar= --dry-run
    --no-warn-script-location --break-system-packages --timeout=
    --retries= --dest> --target>
pip.uninstall t*! -yq -r@ --yes --quiet
uv.sync,lock,tree,build,init,export,venv p*! -qU --quiet --dev --frozen --locked --check
    --all-extras --extra= --group= --upgrade
    --all-groups --no-dev --clear --seed --depth=
uv.add,remove i*! -q --dev --group= --optional= --extra=
poetry,pdm,pipenv,conda.show,check,info,list,install,add,remove,update,lock,build,sync,outdated,search
    i*! -qynvDG --quiet --yes
    --no-interaction --with? --without? --only? --dev --no-dev --no-root --sync --all-extras -E?
    --extras? --tree --latest --json
    --no-update
conda,poetry.env.list,info t*
poetry,conda.config.--list,--show t*

npm. - -s --silent --prefix@ -w= --workspace= --workspaces
yarn. - -s --silent --cwd@
pnpm. - -rsw --silent --recursive --filter= -F= -C@ --dir@ --workspace-root
npm.ls,list,why,explain,help,root,bin,prefix t* -g --global &node
pnpm.ls,list,why t* -g --global &node
npm.pkg,config,dist-tag,owner.get,list,ls t*+ &node
pnpm,yarn.config.get,list t*+ --json
npm.view,info,show,outdated,ping,search,audit,fund,docs,doctor,whoami,version t*+ &node
pnpm.outdated,audit t*+ &node
yarn.list,why,info,outdated,audit,versions t*+ &node
yarn.workspaces.list,info t*+ --json
npm,yarn,pnpm.install,i,ci,add,update,up,upgrade,dedupe,prune,remove,rm,uninstall,rebuild y*! &node
bun.install,add,remove y*! -d --dev --production --frozen-lockfile
npm,yarn,pnpm,bun.run,run-script,test,t,start,build,lint,stop,dev,format,typecheck,check,coverage,compile,watch,clean,e2e,storybook
    p*!
    &node &tool
npm.pack p*! --dry-run --json

cargo.build,b,test,t,check,c,run,r,clippy,fmt,doc,bench,tree,metadata,clean,update,fetch,fix,nextest,pkgid,expand,outdated,audit,llvm-cov
    p*! -qvr -j= -pFi= --release --quiet --verbose --all --workspace --all-targets --all-features
    --no-default-features --features= --lib
    --bins --tests --benches --examples --bin= --test= --bench= --example= --package= --exclude=
    --doc --no-run --no-fail-fast --locked
    --offline --frozen --jobs= --message-format= --check --fix --allow-dirty --allow-staged --depth=
    --invert? --edges= --no-deps
    --format-version= --profile= --keep-going --color= --target= --summary-only --precise=
cargo.add,remove y*! --dev --build --features= --no-default-features --optional -F=
cargo.search,info t*+
go.run pa*! &go
go.build,test,vet,fmt,mod,list,version,clean,work,doc,generate,get s*! &go
go.env t* --json
go.tool.cover p*! --func@
rails.test,routes p*!
bundle.install,check,list,show,outdated i*! --quiet --jobs=
composer.install,validate,show,update,dump-autoload,test,require,outdated y*! -no --no-dev
    --no-interaction --prefer-dist
dotnet.build,test,run,restore,format,clean,list p*! -vqc? --configuration= --no-restore --no-build
    --nologo --verbosity= --filter= --logger=
    --framework= --project@ --verify-no-changes
deno,bun.test,lint,check,fmt,info,task p*! --quiet --check --coverage --watch --bail
zig,dune,stack,cabal,lein,mix,flutter,dart,swift,crystal.build,test,fmt,format,check,clean,analyze,compile,runtest,spec
    p*! -vjc? --release
    --fast --debug --trace --force --coverage --parallel --filter? --check-formatted
    --warnings-as-errors --summary?
bazel.build,test,query,clean t*! -c= -k --config= --test_output= --jobs=
terraform.state.list t*!
terraform.fmt,validate,show,plan,version,output,providers p*! --no-color --json --check --diff
    --recursive
helm.list,version,lint,template p*!

docker,podman.ps,images,logs,inspect,version,info,stats,top,port,diff,history t*+ -s &docker
docker.compose.ps,logs,config,ls,images,top t*+ &docker
docker.network,volume,image,container.ls,inspect t*+ &docker
docker.system.df t*+
docker,podman ^ runs or changes containers, which may reach all of the machine
kubectl. - -n= --namespace= --context=
kubectl.get.pods,pod,po,nodes,svc,services,deployments,deploy,ns,namespaces,ingress,jobs,events,all
    t*+ &kubectl
kubectl.describe.pods,pod,po,node,svc,service,deployment,deploy,job,ingress t*+ &kubectl
kubectl.config.current-context,get-contexts t*+
kubectl.logs,version,top,api-resources,cluster-info,explain t*+ &kubectl
kubectl ^ acts on a cluster in the user's name
gh.pr,issue,repo,run,release,workflow.list,view,status,diff,checks t*+ &gh
gh.api p*+ --jq= -q= --paginate -XfF=^ --method=^ --field=^ --raw-field=^ --input=^
gh.auth.status 0+
gh ^ acts on GitHub in the user's name
apt.list,show,search,policy t* -a --installed --upgradable
apt-cache.search,show,policy,depends,rdepends t* -n
apt,apt-get ^ changes what is installed on the system
dpkg.-l,-L,-s,-S,--list,--status,--search,--listfiles t*
rpm.-q,-qa,-qi,-ql t*
crontab.-l 0
dpkg,rpm,crontab ^ changes the system, or has something run later
systemctl.status,show,list-units,list-timers,list-unit-files,is-active,is-enabled,cat t* -aln --all
    --no-pager --type= --state=
systemctl,service ^ changes the system
journalctl t*+ -xefrkb -u= -n= -p= --since= --until= --no-pager
dmesg 0+ -HTtkxwL --human
brew.list,info,search,--version t*+
gem.list,environment,search,info,specification y*+
rustup.show t*+
rustup.toolchain.list t*+
nvm.ls,current t*+
openssl.version t* -a
ping,host,nslookup,dig t*+ -46nv -c= -i= -W= -w= -t= --count=
pg_isready 0+
redis-cli.ping 0+
dotnet.--list-sdks,--list-runtimes,--info 0
yq fr* -rPy --prettyPrint
yq.e,eval fr* -rPy --prettyPrint
curl u* -sSfLIigGkvNO0246j -dFTXHAebumYyrCz= -w= -o> --silent --show-error --fail --location --head
    --include --get --insecure --verbose
    --no-buffer --remote-name --compressed --data= --data-raw= --data-binary= --data-urlencode=
    --json= --form= --form-string=
    --upload-file= --request= --header= --user-agent= --referer= --cookie= --user= --write-out=
    --output> --max-time= --connect-timeout=
    --retry= --retry-delay= --retry-connrefused --url= --create-dirs --max-redirs= --http1.1 --http2
wget u* -qvcNnSd -O> -o> -P> -t= -T= -U= --quiet --no-verbose --verbose --continue
    --output-document> --directory-prefix> --tries=
    --timeout= --no-check-certificate --spider --server-response --show-progress --progress=
    --header= --post-data= --post-file= --method=
    --body-data=

ssh,scp,sftp,telnet,ftp,rsh,rlogin,mosh,sshpass,ssh-copy-id,autossh,lftp,tftp,ansible,ansible-playbook
    ^ runs on another machine
nc,ncat,netcat,socat,nmap,masscan,ngrok,cloudflared,chisel,openvpn,tor,proxychains,tcpdump,tshark,mail,mailx,sendmail,mutt,swaks,rclone,
    croc,wormhole ^ opens a connection
mkfs,fdisk,sfdisk,parted,mount,umount,losetup,wipefs,cryptsetup,lvremove,vgremove,pvremove,swapoff,swapon,mkswap,blkdiscard,badblocks,fsck,
    e2fsck,tune2fs,resize2fs,hdparm,mdadm,zpool,zfs,btrfs,debugfs,fstrim ^ changes disks
reboot,shutdown,halt,poweroff,init,telinit,kexec ^ stops or restarts the machine
pkill,killall,skill,xkill,fuser ^ ends processes by their names
useradd,userdel,usermod,groupadd,groupdel,groupmod,passwd,chpasswd,visudo,chsh,chfn,adduser,deluser,vipw,newgrp,setcap,htpasswd,gpasswd
    ^
    changes users or rights
iptables,ip6tables,nft,ufw,firewall-cmd,route,ifconfig,modprobe,insmod,rmmod,tc,nmcli,bpftool,setenforce,auditctl
    ^ changes the network or
    the kernel
at,batch,anacron,systemd-tmpfiles ^ has something run later, unseen
gpg,gpg2,ssh-keygen,ssh-add,ssh-agent,security,pass,op,vault,secret-tool,keyctl,age,openssl,certbot
    ^ handles keys and credentials
aws,gcloud,az,terraform,tofu,pulumi,heroku,flyctl,vercel,netlify,wrangler,doctl,helm,eb,sam,serverless,twine,glab,hub
    ^ acts on machines
    elsewhere in the user's name
uvx,pipx,bunx,nix-shell,nix,snap,flatpak,brew,yum,dnf,pacman,apk,zypper,emerge,gem,cpan,easy_install,port,rustup,nvm,pyenv,sdk
    ^ fetches a
    program and runs it
su,runuser,chroot,nsenter,unshare,setpriv,capsh,machinectl,systemd-run,start-stop-daemon ^ runs it
    as somebody else
sudo,doas,pkexec,run0,gosu ^ runs it with more rights
chown,chgrp ^ changes who owns files
setfacl,chattr ^ changes who may use files
shred,wipe,srm ^ destroys files
"""

# Names of packages that are installed, and SQL that only selects.
PACKAGE = r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:\s*(?:[=!~<>]=|===|[<>])\s*[\w.*+!-]+(?:\s*,\s*(?:[=!~<>]=|[<>])\s*[\w.*+!-]+)*)?"
NODE_PACKAGE = r"(?:@[a-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*(?:@[\^~<>=]*[A-Za-z0-9][\w.+-]*)?"
_SQL_DOES = r"(?s:.*)(?:=|\b(?:fsdir|lsdir|zipfile|sqlar\w*|csv)\b|\b(?!(?:count|sum|min|max|avg|total|lower|upper|length|substr|coalesce|ifnull|group_concat|date|datetime|strftime|round|abs|typeof|distinct|in|values|over|exists|cast|as|and|or|not|select|from|where)\b)\w+\s*\()"
SQL = rf"(?!{_SQL_DOES})(?:\s*(?:select|explain|with|pragma\s+\w+)\b[^;]*;?\s*|\.(?:tables?|schema|indexes|databases|fullschema|dump)(?:\s+\w+)?)"

# Programs that print their version and nothing else; those that read the project's settings even
# then; and those that take `-version`.
VERSIONED = """\
python python2 python3 pypy3 pip pip3 node nodejs ruby perl php lua gcc g++ cc c++ clang clang++ git
    make cmake ninja java javac npm bash sh tar curl wget docker kubectl aws gh jq rg sqlite3
    redis-cli ssh ffmpeg convert pandoc julia ghc tsc gem conda uv pipx ruff mysql psql
jshell kotlinc ltrace indent vimdiff gdb protoc cython elixir scala kotlin nim ocaml terraform helm
    vim emacs nano tmux ansible bat htop lldb valgrind strace dart nvcc R rsync zip unzip ffprobe"""
VERSIONED_BY_PROJECT = "cargo rustc go mvn gradle yarn pnpm bundle composer poetry pipenv pdm deno bun dotnet swift npx ant flutter stack cabal dune zig crystal sbt lein mix rustup hatch pytest mypy black tox nox ipython jupyter Rscript flake8 isort pylint eslint prettier jest vite next ng"
ONE_DASH = "kotlinc java javac ffmpeg convert sqlite3 ant scala mvn"
# Programs whose options end at the first operand, and those whose long options begin with one dash.
STOPS = "awk gawk mawk nawk xargs timeout nice time nohup stdbuf strace valgrind python python2 python3 pypy3 node nodejs ruby perl bash sh dash zsh php lua java go.run xxd"
SINGLE_DASH = ("go.", "java", "sqlite3", "terraform.")
# Options before a program that `uv run` and their like, or `npx`, run; values that variables of
# `make` and `cmake` may have; options of compilers.
RUN_OPTIONS = (
    "-- --quiet -q --no-sync --frozen --locked --all-extras --dev --active --no-install --no"
)
MAKE_VALUE = r"\d*|yes|no|true|false|on|off|ON|OFF|[Rr]elease|[Dd]ebug|RelWithDebInfo|MinSizeRel|gcc|clang|cc|g\+\+|clang\+\+|python3?"
COMPILER_OPTION = r"-(?:std=[\w+]+|pthread|shared|static|fPIC|fsyntax-only|ansi|pedantic|rdynamic|fsanitize=[\w,]+|march=native|l\w+)"
MODE = r"0?[0-7][0-7][0145]|[ugoa]*[-+=][rxX]*|[ug]+[-+=][rwxX]*|\+[rwxX]*|[ugoa]*-[rwxX]*(?:,[ug]*[-+=][rwxX]*)*|u=[rwx]*(?:,(?:g|o|go)=[rx]*)*"
# Lines of a file of requirements that install from elsewhere.
FOREIGN_LINE = r"^\s*(?:-(?!r|c|e\s*\.)|--(?!require|constraint|no-|only-)|(?:git|hg|svn|bzr)\+|\w+://|[^#\n]*\s@\s)"
# Options of curl and wget by what they send: data, files, headers, credentials.
SENDS = "-d --data --data-raw --data-binary --data-urlencode --data-ascii --json -F --form --form-string --post-data --body-data"
